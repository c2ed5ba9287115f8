"""The options that select a model: one of the zoo, with its sizes, or one of the user's.

Every command takes a model in the same way: a name of the zoo, or ``module:build``, which is called
with the store if it takes an argument. The zoo's sizes do not apply to a ``module:build`` model, so
giving both is an error; the sizes are not silently ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from staticgraph.cli import values
from staticgraph.text.how_many import how_many

if TYPE_CHECKING:
    from torch.nn import Module

    from staticgraph.store.graph_store import GraphStore

# The options of zoo models only, with their defaults.
SIZES: Mapping[str, Any] = {"hidden": 64, "layers": 4, "dropout": 0.0, "pool": "mean"}
# Models of the zoo with attention, and their default number of heads: duplicated here since
# staticgraph/models imports torch; a test compares the copies.
WITH_HEADS, HEADS = ("gps", "gat"), 4


def add_model(group: Any, default: str | None = "gine") -> None:
    """Adds ``--model`` and the zoo's sizes to a group of options.

    A size that is not given is None, or missing from the namespace if the parser's
    ``argument_default`` is ``SUPPRESS``."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    group.add_argument(
        "--model",
        type=values.model,
        metavar="NAME",
        help=f"{', '.join(values.MODELS)}, or MODULE:NAME of a function that builds one, called "
        "with the store if it takes an argument (default: gine)",
        **given,
    )
    group.add_argument(
        "--hidden",
        type=values.whole(1, values.WIDEST),
        help=f"width of every layer (default: {SIZES['hidden']})",
    )
    group.add_argument(
        "--layers",
        type=values.whole(1, values.MOST_LAYERS),
        help=f"number of convolutions (default: {SIZES['layers']})",
    )
    group.add_argument(
        "--dropout",
        type=values.share,
        help=f"dropout between layers (default: {SIZES['dropout']:g})",
    )
    group.add_argument(
        "--pool", choices=("mean", "add"), help=f"pooling over nodes (default: {SIZES['pool']})"
    )


def check_sizes(args: argparse.Namespace) -> None:
    """Exits with a usage error, before anything is loaded, if the zoo's sizes are given for a
    ``module:build`` model, or if a zoo model's heads do not divide its columns."""
    model = getattr(args, "model", None) or ""
    check_heads(args, model, getattr(args, "hidden", None), getattr(args, "heads", HEADS))
    given = [name for name in SIZES if getattr(args, name, None) is not None]
    if ":" in model and given:
        args.parser.error(
            f"--{given[0]} is of the models {', '.join(values.MODELS)}; {model} builds its own: "
            f"leave --{given[0]} out"
        )


def check_heads(
    args: argparse.Namespace, model: str | None, hidden: int | None, heads: int = HEADS
) -> None:
    """Exits with a usage error if the heads of a zoo model do not divide its columns.

    Args:
        args: the arguments of the command.
        model: the name of the model; None for the default, which has no heads.
        hidden: the number of columns; None for the default, which the heads divide.
        heads: the number of attention heads.
    """
    if model in WITH_HEADS and hidden is not None and hidden % heads:
        near = max(heads, hidden - hidden % heads)
        args.parser.error(
            f"argument --hidden: {model} has {how_many(heads, 'head')}, which do not divide "
            f"hidden={hidden}: give --hidden {near}"
        )


def model_without_data(args: argparse.Namespace) -> Module | None:
    """Builds the model of ``--model MODULE:NAME``, with the seed's weights, before data is read;
    None if it takes the data or is a model of the zoo.

    Raises:
        ValueError: the result is not a ``torch.nn.Module``, or has no trainable parameters.
    """
    import torch

    from staticgraph.models.named import built_without_data, require_trainable

    torch.manual_seed(getattr(args, "seed", 0))
    model = built_without_data(args.model)
    if model is not None:
        require_trainable(model, args.model)
    return model


def model_of(
    args: argparse.Namespace, store: GraphStore, num_outputs: int = 1, **more: Any
) -> Module:
    """Builds the model that the options name.

    Args:
        args: arguments with the options of :func:`add_model`.
        store: the data.
        num_outputs: the number of output columns of a zoo model.
        **more: further options of :func:`staticgraph.models.build`.
    """
    from staticgraph import models
    from staticgraph.models.named import built, is_spec

    check_sizes(args)
    if is_spec(args.model):
        return built(args.model, store)
    sizes = {
        name: default if getattr(args, name, None) is None else getattr(args, name)
        for name, default in SIZES.items()
    }
    return models.build(args.model, store, num_outputs=num_outputs, **sizes, **more)
