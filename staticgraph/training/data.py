"""The data of a run: the store that its settings name, and where batches are made of it."""

from __future__ import annotations

import torch

from staticgraph import datasets
from staticgraph.distributed.ranks import Ranks
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore, fits, is_simple
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.training.config import TrainConfig
from staticgraph.training.job import first_alone

# Of a GPU's free memory, what a data set may take unasked: the steps, whose need is not known
# before they are compiled, keep the larger part. molhiv takes some 25 MB, so it decides rarely.
SHARE_FOR_DATA = 0.25


def opened(config: TrainConfig, ranks: Ranks | None, progress: bool) -> GraphStore:
    """The store of a run; one process downloads what the others then find.

    Raises:
        DatasetUnavailable: it cannot be had.
        BadGraph: a graph of it is none.
    """

    def read_data() -> GraphStore:
        """The data set of the run's settings, from its files."""
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
    """Where batches are made of: the store, moved to the device if so chosen.

    Args:
        config: says where.
        store: the data.
        device: of the run.
        pointers: whether batches need row pointers.
    """
    wanted = config.store
    if wanted == "auto" and device.type == "cuda" and is_simple(store):
        wanted = "device" if fits(store, device, SHARE_FOR_DATA, pointers) else "host"
    return store.to(device, pointers=pointers) if wanted == "device" else store


def place_of(source: GraphStore | DeviceStore) -> str:
    """Where the graphs are, in words."""
    if isinstance(source, DeviceStore):
        return f"on the device ({human_bytes(source.nbytes)})"
    return "on the host"


def check_judged(config: TrainConfig, store: GraphStore) -> None:
    """What asks for validation losses needs graphs to validate.

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
