"""``staticgraph partition``: cut a large graph into partitions on disk."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

EXAMPLE = """\
examples:
  staticgraph partition --data fb15k-237 --partitions 32 --out graph/
  staticgraph partition --edges edges.npy --nodes 1000000 --features features.npy --out graph/
"""


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "partition",
        help="cut a graph larger than memory into partitions on disk",
        description="Cut one large graph into partitions on disk, in bounded memory.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", metavar="SPEC", help="fb15k-237, cora, citeseer, cornell5, or a .npz (its edges)"
    )
    source.add_argument("--edges", metavar="FILE", help=".npy of integers [2, E] or [3, E]")
    parser.add_argument("--nodes", type=int, metavar="N", help="with --edges: nodes of the graph")
    parser.add_argument("--features", metavar="FILE", help="with --edges: .npy of [N, F]")
    parser.add_argument(
        "--partitions", default="auto", metavar="P", help="how many, or auto (default: auto)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the new numbers (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to")
    parser.add_argument("--overwrite", action="store_true", help="replace the graph in --out")
    parser.add_argument("--verify", action="store_true", help="read all back, compare checksums")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Partitions, and prints what came of it."""
    if args.edges is not None and args.nodes is None:
        args.parser.error("--edges needs --nodes")
    if args.partitions != "auto" and not args.partitions.isdigit():
        args.parser.error(f"--partitions {args.partitions}: give a number, or auto")

    import numpy as np

    from staticgraph.outofcore import PartitionedGraph, data, partition
    from staticgraph.table import table

    edges: Any = args.edges
    nodes, features = int(args.nodes or 0), None
    if args.edges is not None:
        features = np.load(args.features, mmap_mode="r") if args.features else None
    else:
        links = data.open_links(args.data, held_out=0.0)
        edges, nodes = links.train, links.num_nodes
    count = "auto" if args.partitions == "auto" else int(args.partitions)
    partition(
        edges, nodes, count, args.out, features=features, seed=args.seed, progress=_progress,
        overwrite=args.overwrite,
    )  # fmt: skip
    print(file=sys.stderr)
    graph = PartitionedGraph(args.out, verify=args.verify)
    sizes = graph.bucket_sizes
    found = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "relations": graph.num_relations,
        "partitions": graph.num_partitions,
        "partition_nodes": graph.partition_size,
        "bucket_edges_min": int(sizes.min()),
        "bucket_edges_mean": round(float(sizes.mean()), 1),
        "bucket_edges_max": int(sizes.max()),
        "bytes": sum(record.bytes for record in graph.manifest.files.values()),
    }
    rows = [(name.replace("_", " "), f"{value:,}") for name, value in found.items()]
    print(json.dumps(found, indent=1) if args.json else table(("what", str(args.out)), rows))
    return 0


def _progress(stage: str, done: int) -> None:
    print(f"\r{stage}: {done:,} edges ".ljust(40), end="", file=sys.stderr, flush=True)
