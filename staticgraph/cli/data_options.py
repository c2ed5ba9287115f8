"""The options that say which data is meant, alike for every command that takes graphs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from staticgraph.cli import values

if TYPE_CHECKING:
    from staticgraph.store.graph_store import GraphStore


def add_data(group: Any, *, required: bool = False) -> None:
    """Adds ``--data`` and ``--target`` to a parser, or to a group of its options."""
    group.add_argument(
        "--data", required=required, type=values.words, metavar="SPEC", help=values.SPECS
    )
    group.add_argument(
        "--target",
        nargs="+",
        type=values.words,
        metavar="COLUMN",
        help="of a CSV, what to predict (default: every column of numbers)",
    )


def open_data(args: argparse.Namespace, seed: int = 0) -> GraphStore:
    """Opens what the options of :func:`add_data` name.

    Args:
        args: with what :func:`add_data` added.
        seed: of a random split.

    Raises:
        UnknownDataset, FileNotFoundError, BadGraph: as :func:`staticgraph.datasets.open`.
    """
    from staticgraph import datasets

    return datasets.open(args.data, target=args.target, seed=seed)
