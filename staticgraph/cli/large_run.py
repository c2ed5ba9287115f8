"""What both tasks of ``train-large`` share: sizes, the graph of the run, progress."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staticgraph.outofcore import Tuning

# Partitions and buffer where neither is given: those of the published comparison.
DEFAULTS = {
    "in-memory": (1, 1), "comet": (32, 8), "beta": (16, 4), "node-cache": (16, 8),
    "dispersed": (16, 8),
}  # fmt: skip
SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}


def fanouts_of(args: argparse.Namespace) -> list[int]:
    """``--fanouts`` as numbers."""
    try:
        return [int(f) for f in args.fanouts.split(",")]
    except ValueError:
        raise ValueError(f"--fanouts {args.fanouts}: give whole numbers, as in 10,10") from None


def sizes_of(args: argparse.Namespace, tuned: Tuning | None) -> tuple[int, int, int | None]:
    """p, c and l."""
    if tuned is not None:
        if args.policy != "comet":
            args.parser.error("--memory chooses for --policy comet")
        return tuned.partitions, max(2, tuned.buffer), None if tuned.in_memory else tuned.logical
    p, c = DEFAULTS[args.policy]
    return args.partitions or p, args.buffer or c, args.logical


def graph_of(args: argparse.Namespace, edges: Any, num_nodes: int, p: int, **more: Any) -> Any:
    """The partitioned graph of the run, made where it is missing."""
    from staticgraph.outofcore import PartitionedGraph, partition

    folder = args.out / "graph"
    if (folder / "manifest.json").exists():
        graph = PartitionedGraph(folder)
        found = (graph.num_nodes, graph.num_edges, graph.num_partitions, graph.manifest.seed)
        wanted = (num_nodes, edges.shape[1], p, args.seed)
        if found == wanted:
            return graph
        raise ValueError(
            f"{folder} has nodes, edges, partitions, seed {found}, asked was {wanted}: choose "
            "another --out, or --overwrite"
        )
    return partition(edges, num_nodes, p, folder, seed=args.seed, **more)


def bytes_of(text: str) -> int:
    """Bytes of a text as 512M."""
    unit = SUFFIXES.get(text[-1:].upper(), 1)
    try:
        return int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        raise ValueError(f"--memory {text}: give bytes, or a number with K, M or G") from None


def state(number: int, of: int) -> None:
    """Progress within an epoch, on a terminal, where it can be written over."""
    if sys.stderr.isatty():
        say(f"\rstate {number + 1} of {of} ")


def say(text: str) -> None:
    """To stderr, at once."""
    print(text, end="", file=sys.stderr, flush=True)
