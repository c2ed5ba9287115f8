"""The options that say which model is meant: one of the zoo, with its size, or one of the user's.

Every command that takes a model takes it the same way: a name of the zoo, or ``module:build``,
which is called with the store where it takes an argument. The zoo's sizes say nothing of a model
that builds itself, so giving both is an error, not a number that is ignored.
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

# Of the zoo alone; what each is where it is not given.
SIZES: Mapping[str, Any] = {"hidden": 64, "layers": 4, "dropout": 0.0, "pool": "mean"}
# Models of the zoo that attend, and the heads that each has unasked: they stand here, too, since
# staticgraph/models imports torch; a test compares them.
WITH_HEADS, HEADS = ("gps", "gat"), 4


def add_model(group: Any, default: str | None = "gine") -> None:
    """Adds ``--model`` and the zoo's sizes to a group of options; what is not given is None, or
    stays out of the namespace where the parser's own default is so."""
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
    """Ends with a usage error where sizes of the zoo are given to a model that builds itself, or
    its heads do not divide the columns: before anything is loaded."""
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
    """Ends with a usage error where a model of the zoo cannot share its columns among its heads.

    Args:
        args: of the command.
        model: its name; None for the default, which has none.
        hidden: columns; None for the default, which heads divide.
        heads: attention heads.
    """
    if model in WITH_HEADS and hidden is not None and hidden % heads:
        near = max(heads, hidden - hidden % heads)
        args.parser.error(
            f"argument --hidden: {model} has {how_many(heads, 'head')}, which do not divide "
            f"hidden={hidden}: give --hidden {near}"
        )


def model_without_data(args: argparse.Namespace) -> Module | None:
    """A model to train that ``--model MODULE:NAME`` builds from nothing, of the seed's weights: to
    be called before the data is read. None where it takes the data, or is of the zoo.

    Raises:
        ValueError: it is no ``torch.nn.Module``, or nothing in it can be trained.
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
    """The model that the options name.

    Args:
        args: with what :func:`add_model` added.
        store: the data.
        num_outputs: columns of a zoo model's result.
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
