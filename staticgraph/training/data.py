"""The data of a run: the store that its settings name, and the device that holds it."""

from __future__ import annotations

import torch

from staticgraph import datasets
from staticgraph.distributed.ranks import Ranks
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore, fits, is_simple
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.training.config import TrainConfig
from staticgraph.training.job import first_alone

# The share of a GPU's free memory that a data set may take with store="auto": the steps, whose need
# is not known before they are compiled, keep the larger part. molhiv takes some 25 MB, so the limit
# rarely matters.
SHARE_FOR_DATA = 0.25


def opened(config: TrainConfig, ranks: Ranks | None, progress: bool) -> GraphStore:
    """Opens the store of a run; rank 0 downloads the files, which the other ranks then read.

    Raises:
        DatasetUnavailable: the data cannot be obtained.
        BadGraph: a graph of the data is invalid.
    """

    def read_data() -> GraphStore:
        """Reads the data set of the run's settings."""
        return datasets.open(
            config.data,
            target=config.target,
            task=config.task,
            seed=config.seed,
            progress=progress,
        )

    return first_alone(ranks, read_data) or read_data()


def source_of(
    config: TrainConfig, store: GraphStore, device: torch.device, pointers: bool
) -> GraphStore | DeviceStore:
    """The source of batches: the store, or its copy on the device.

    Args:
        config: the settings, which choose between the two.
        store: the data.
        device: the device of the run.
        pointers: whether batches need row pointers.
    """
    wanted = config.store
    if wanted == "auto" and device.type == "cuda" and is_simple(store):
        wanted = "device" if fits(store, device, SHARE_FOR_DATA, pointers) else "host"
    return store.to(device, pointers=pointers) if wanted == "device" else store


def place_of(source: GraphStore | DeviceStore) -> str:
    """A description of where the graphs are."""
    if isinstance(source, DeviceStore):
        return f"on the device ({human_bytes(source.nbytes)})"
    return "on the host"


def check_judged(config: TrainConfig, store: GraphStore) -> None:
    """Checks that there are graphs to validate if a setting depends on the validation loss.

    Raises:
        ValueError: there are none.
    """
    asks = [
        name
        for name, asked in (
            ("early_stop", config.early_stop is not None),
            ("schedule='plateau'", config.schedule == "plateau"),
        )
        if asked
    ]
    if asks and not len(store.splits.get("val", ())):
        raise ValueError(
            f"{asks[0]} depends on the validation loss, and {store.name} has no graphs to "
            "validate: leave it out, or give the data a split 'val'"
        )
