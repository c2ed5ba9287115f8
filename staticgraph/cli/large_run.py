"""What both tasks of ``train-large`` share: defaults, sizes, and the graph of the run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from staticgraph.outofcore import Tuning

T = TypeVar("T")

# The default partitions and buffer: those of the published comparison.
DEFAULTS = {
    "in-memory": (1, 1), "comet": (32, 8), "beta": (16, 4), "node-cache": (16, 8),
    "dispersed": (16, 8),
}  # fmt: skip
# The contents of a run's folder.
GRAPH, EMBEDDINGS, REPORT, PICTURE = "graph", "embeddings", "report.json", "schedule.png"


def given(value: T | None, default: T) -> T:
    """An option's value, or its default if it was not given."""
    return default if value is None else value


def sizes_of(args: argparse.Namespace, tuned: Tuning | None) -> tuple[int, int, int | None]:
    """The numbers of partitions, of buffered partitions, and of comet's groups."""
    if tuned is not None:
        if args.policy != "comet":
            args.parser.error("--memory chooses for --policy comet")
        return tuned.partitions, max(2, tuned.buffer), None if tuned.in_memory else tuned.logical
    p, c = DEFAULTS[args.policy]
    return given(args.partitions, p), given(args.buffer, c), args.logical


def graph_of(
    args: argparse.Namespace, edges: Any, num_nodes: int, p: int, near: int = 0, **more: Any
) -> Any:
    """Opens the partitioned graph of the run, and creates it if it does not exist.

    Raises:
        ValueError: the folder of the run has a different graph.
    """
    from staticgraph.outofcore import PartitionedGraph, partition

    folder = args.out / GRAPH
    if (folder / "manifest.json").exists():
        graph = PartitionedGraph(folder)
        manifest = graph.manifest
        sizes = manifest.num_nodes, manifest.num_edges, manifest.num_partitions
        found = (*sizes, manifest.seed, manifest.near)
        wanted = (num_nodes, edges.shape[1], p, args.seed, near)
        if found == wanted:
            return graph
        raise ValueError(
            f"{folder} has nodes, edges, partitions, seed, hops from the training nodes {found}, "
            f"asked was {wanted}: choose another --out, or --overwrite"
        )
    return partition(edges, num_nodes, p, folder, seed=args.seed, near=near, **more)
