"""Builds the parts of a run from its settings: data, task, model and optimizer.

The seed is set before the model is built, and a model that does not take the data is built before
the data is read. The invariant: the same settings and the same data make the same parts, whether a
run starts or is resumed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from staticgraph import models
from staticgraph.errors import BadGraph, BudgetExceeded, CheckpointCorrupt
from staticgraph.files.checksum import crc32_of_array
from staticgraph.memory.budget import MemoryBudget
from staticgraph.models.named import built, built_without_data, is_spec, require_trainable
from staticgraph.runner.ways import WAYS, Auto
from staticgraph.steps.compilation.modes import FUSED
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore, odd_rows
from staticgraph.training.config import SIZES, TrainConfig
from staticgraph.training.options import ModelOptions
from staticgraph.training.tasks import named_loss, task_of


def digest_of(store: GraphColumns) -> str:
    """Returns sixteen hexadecimal digits that change with any feature, label, edge or split.

    The store's name and location and the objects on the host do not affect them. Reads every other
    array once.
    """
    store.verify()
    schema = replace(store.schema, molecules=False)  # not a property of the data
    hashed = hashlib.sha256(json.dumps(schema.to_dict()).encode())
    for name, array in sorted(store.arrays().items()):
        if name.startswith("object"):
            continue
        entry = (name, array.dtype.str, array.shape, crc32_of_array(array))
        hashed.update(repr(entry).encode())
    return hashed.hexdigest()[:16]


# The share of a GPU's free memory that a data set may take with store="auto": the steps, whose need
# is not known before they are compiled, keep the larger part. molhiv takes some 25 MB, so the limit
# rarely matters.
SHARE_FOR_DATA = 0.25


def source_of(
    place: str, store: GraphStore, device: torch.device, pointers: bool
) -> GraphStore | DeviceStore:
    """The source of batches: the store, or its copy on the device.

    Args:
        place: ``host``, ``device``, or ``auto``: the device if that is a GPU with enough free
            memory.
        store: the data.
        device: the device of the run.
        pointers: whether batches need row pointers.
    """
    if place == "auto" and device.type == "cuda" and not odd_rows(store):
        budget = MemoryBudget.of_device(device, safety=SHARE_FOR_DATA)
        with suppress(BudgetExceeded):
            return store.to(device, pointers=pointers, budget=budget)
    return store.to(device, pointers=pointers) if place == "device" else store


def adam(model: Module, lr: float, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of a run: torch's fused Adam, which can be recorded on CUDA."""
    on_cuda = device.type == "cuda"
    return torch.optim.Adam(model.parameters(), lr=lr, fused=True, capturable=on_cuda)


def model_of(config: ModelOptions, store: GraphStore, num_outputs: int) -> Module:
    """Builds the model of a run: one of the zoo, with its sizes, or the result of ``module:build``.

    Raises:
        ValueError: the name is unknown, the sizes do not fit together, or a model of the zoo cannot
            take the graphs.
    """
    if is_spec(config.model):
        return built(config.model, store)
    sizes = {name: getattr(config, name) for name in SIZES}
    return models.build(config.model, store, num_outputs=num_outputs, **sizes)


def open_step(
    options: ModelOptions, seed: int = 0, open_data: Callable[[], GraphStore] | None = None
) -> tuple[GraphStore, Loss, Module]:
    """Opens the data that the options name, and builds its loss and its model, with the seed's
    weights. A model that takes no data is built first, so that what is wrong with it shows before
    data is read.

    Args:
        options: the names.
        seed: of the weights, and of a random split.
        open_data: opens the data; as the options do if None.

    Raises:
        BadGraph: no loss was given, and the data has no target that defines a task.
        ValueError: a model of the zoo cannot take the graphs, the model has no trainable
            parameters, or the model or the loss is invalid.
    """
    loss: Loss | None = named_loss(options.loss) if options.loss else None
    torch.manual_seed(seed)
    model, outputs = built_without_data(options.model), 1
    if model is not None:
        require_trainable(model, options.model)
    store = options.open(seed) if open_data is None else open_data()
    try:
        task = task_of(store, options.task)
        loss, outputs = task if loss is None else loss, task.num_outputs
    except BadGraph as error:
        if loss is None:
            raise BadGraph(
                f"{error}; or give --loss MODULE:NAME, which is loss(out, batch), one value per row"
            ) from None
    if model is None:
        torch.manual_seed(seed)
        model = model_of(options, store, outputs)
        require_trainable(model, options.model)
    return store, loss, model


def mode_of(config: TrainConfig) -> str | Auto:
    """The mode of a run; with ``kernels="off"``, ``auto`` does not consider the fused mode."""
    if config.compile_mode == "auto" and config.kernels == "off":
        return Auto(ways=tuple(way for way in WAYS if way != FUSED))
    return config.compile_mode


def load_weights(model: Module, weights: Mapping[str, Tensor], name: str, folder: Path) -> None:
    """Loads the weights of a run into a model.

    Raises:
        CheckpointCorrupt: the weights are those of another model; the code of a ``module:build``
            model may have changed since.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointCorrupt(
            f"{folder} holds the weights of another model than {name} builds now "
            f"({str(error).splitlines()[-1].strip()}): put its code back, or train again"
        ) from error
