"""The model and the mode of a run, from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GPSConv

from staticgraph import models
from staticgraph.errors import CheckpointCorrupt
from staticgraph.models.named import built, is_spec
from staticgraph.runner.auto import WAYS, Auto
from staticgraph.steps.compilation.modes import FUSED
from staticgraph.store.graph_store import GraphStore
from staticgraph.training.config import TrainConfig


def model_of(config: TrainConfig, store: GraphStore, num_outputs: int) -> Module:
    """Builds the model of a run: one of the zoo, with its sizes, or the result of ``module:build``.

    Raises:
        ValueError: the name is unknown, or the sizes do not fit together.
    """
    if is_spec(config.model):
        return built(config.model, store)
    return models.build(
        config.model,
        store,
        hidden=config.hidden,
        layers=config.layers,
        dropout=config.dropout,
        pool=config.pool,
        num_outputs=num_outputs,
    )


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


def attends(model: Module) -> bool:
    """Whether a model attends within graphs, so that a plan considers the size of each graph."""
    return any(isinstance(module, GPSConv) for module in model.modules())


def mode_of(config: TrainConfig) -> str | Auto:
    """The mode of a run; with ``kernels="off"``, ``auto`` does not consider the fused mode."""
    if config.compile_mode == "auto" and config.kernels == "off":
        return Auto(ways=tuple(way for way in WAYS if way != FUSED))
    return config.compile_mode
