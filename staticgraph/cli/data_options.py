"""The options that select the data, the same for every command that takes graphs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from staticgraph.cli import values

if TYPE_CHECKING:
    from staticgraph.store.graph_store import GraphStore


def add_data(group: Any, *, required: bool = False, default: str | None = "auto") -> None:
    """Adds ``--data``, ``--target`` and ``--task`` to a parser or a group of options.

    With ``default`` None, a task that is not given takes the parser's ``argument_default``; with
    ``SUPPRESS`` it is missing from the namespace."""
    group.add_argument(
        "--data", required=required, type=values.words, metavar="SPEC", help=values.SPECS
    )
    group.add_argument(
        "--target",
        nargs="+",
        type=values.words,
        metavar="COLUMN",
        help="columns of a CSV to predict (default: every column of numbers)",
    )
    group.add_argument(
        "--task",
        choices=values.TASKS,
        help="what the target is: numbers, yes or no (0 and 1), or classes; auto decides by the "
        "dtype of y, or by the cells of a CSV (default: auto)",
        **({} if default is None else {"default": default}),
    )


def open_data(args: argparse.Namespace, seed: int = 0) -> GraphStore:
    """Opens the data that the options of :func:`add_data` name.

    Args:
        args: arguments with the options of :func:`add_data`.
        seed: the seed of a random split.

    Raises:
        UnknownDataset, FileNotFoundError, BadGraph: as for :func:`staticgraph.datasets.open`.
    """
    from staticgraph import datasets

    return datasets.open(args.data, target=args.target, task=args.task, seed=seed)
