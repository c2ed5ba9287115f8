"""``staticgraph partition``: cut a large graph into partitions on disk."""

from __future__ import annotations

import argparse
from typing import Any

from staticgraph.cli import values
from staticgraph.cli.loading import load, look_for_graph
from staticgraph.files.json_text import to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Status

EXAMPLE = """\
examples:
  staticgraph partition --data fb15k-237 --partitions 32 --out graph/
  staticgraph partition --edges edges.npy --nodes 1000000 --features features.npy --out graph/
"""

# Names in JSON, and labels in the table; a cell holds the edges from one partition to another.
LABELS = {
    "partition_nodes": "nodes per partition",
    "bucket_edges_min": "edges per cell, fewest",
    "bucket_edges_mean": "edges per cell, mean",
    "bucket_edges_max": "edges per cell, most",
}


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "partition",
        help="cut a graph larger than memory into partitions on disk",
        description="Cut one large graph into partitions on disk, in bounded memory.",
        epilog=EXAMPLE,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", type=values.words, metavar="SPEC",
        help="fb15k-237, cora, citeseer, cornell5, or a .npz (its edges)",
    )  # fmt: skip
    source.add_argument(
        "--edges", type=values.file_to_read, metavar="FILE",
        help=".npy of integers [2, E] or [3, E]",
    )  # fmt: skip
    parser.add_argument(
        "--nodes", type=values.whole(1, 2**62), metavar="N", help="with --edges: number of nodes"
    )
    parser.add_argument(
        "--features", type=values.file_to_read, metavar="FILE", help="with --edges: .npy of [N, F]"
    )
    parser.add_argument(
        "--partitions", type=values.auto_or(values.whole()), default="auto", metavar="P",
        help="number of partitions, or auto (default: auto)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=values.seed, default=0, help="seed of the new node numbers (default: 0)"
    )
    parser.add_argument(
        "--out",
        type=values.folder_to_write,
        required=True,
        metavar="DIR",
        help="folder of the graph; required",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the graph in --out")
    parser.add_argument(
        "--verify", action="store_true", help="read everything back and compare checksums"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Partitions the graph, and prints the resulting sizes."""
    if args.edges is not None and args.nodes is None:
        args.parser.error("--edges needs --nodes")
    if args.edges is None and (args.nodes is not None or args.features is not None):
        args.parser.error("--nodes and --features go with --edges; --data brings its own")
    load() if args.edges is not None else look_for_graph(args.data)

    from staticgraph.outofcore import PartitionedGraph, partition
    from staticgraph.outofcore.disk import data
    from staticgraph.outofcore.disk.array_files import open_array
    from staticgraph.text.table import table

    edges: Any = args.edges
    nodes: Any
    nodes, features = args.nodes, None
    if args.edges is not None:
        features = None if args.features is None else open_array(args.features)
    else:
        links = data.open_links(args.data, held_out=0.0)
        edges, nodes = links.train, links.num_nodes
    status = Status()
    partition(
        edges, nodes, args.partitions, args.out, features=features, seed=args.seed,
        progress=lambda stage, done: status.show(f"{stage}: {how_many(done, 'edge')}"),
        overwrite=args.overwrite,
    )  # fmt: skip
    status.clear()
    graph = PartitionedGraph(args.out, verify=args.verify)
    sizes = graph.cell_sizes
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
    rows = [(LABELS.get(name, name), f"{value:,}") for name, value in found.items()]
    print(to_json(found) if args.json else table(("what", str(args.out)), rows))
    return 0
