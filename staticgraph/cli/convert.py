"""``staticgraph convert`` and ``partition``: write a data set, or one large graph, to disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from staticgraph.cli.refusals import UsageError, require_graph, require_names
from staticgraph.files.document import to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Status
from staticgraph.text.table import table
from staticgraph.training.options import (
    INPUT_FILE,
    OUTPUT_FOLDER,
    WHOLE,
    WORDS,
    DataOptions,
    Seed,
    auto_or,
    value,
    whole,
)

# Names in JSON, and labels in the table; a cell holds the edges from one partition to another.
LABELS = {
    "partition_nodes": "nodes per partition",
    "bucket_edges_min": "edges per cell, fewest",
    "bucket_edges_mean": "edges per cell, mean",
    "bucket_edges_max": "edges per cell, most",
}


def convert(
    *,
    data: DataOptions,
    out: Annotated[Path, OUTPUT_FOLDER],
    workers: Annotated[int, value(whole(1, 1024), metavar="N")] = 1,
    part_graphs: Annotated[int, WHOLE, Parameter(metavar="N")] = 20_000,
    shards: bool = False,
    seed: Seed = 0,
    keep_order: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Write a data set as a store on disk, in bounded memory. After a kill the same command
    continues.

    For example:
      staticgraph convert --data molecules.csv --out molecules --workers 8
      staticgraph convert --data ogb:ogbg-molhiv --out hiv
      staticgraph convert --data molecules --out shards --shards --part-graphs 200000

    Args:
        data: the data.
        out: folder of the store.
        workers: processes that read a table or copy a store.
        part_graphs: graphs that a process holds in memory, and at most loses if it is killed.
        shards: keep the parts as shards instead of joining them into one copy.
        seed: seed of a random split.
        keep_order: leave edges in their order instead of sorting them by destination.
        overwrite: replace the store in --out.
        json: print JSON instead of a table.
    """
    require_names(data)
    from staticgraph.datasets import convert as conversion

    store = conversion.convert(
        data.data,
        out,
        workers=workers,
        merged=not shards,
        part_graphs=part_graphs,
        target=data.target,
        task=data.task,
        seed=seed,
        overwrite=overwrite,
        keep_order=keep_order,
    )
    totals = store.histogram.totals.tolist()
    sizes = {
        "graphs": len(store),
        "nodes": totals[0],
        "edges": totals[1],
        "bytes": store.nbytes,
        **{f"split {name}": len(ids) for name, ids in store.splits.items()},
    }
    _print_sizes(out, sizes, json)


def partition(
    *,
    out: Annotated[Path, OUTPUT_FOLDER],
    data: Annotated[str | None, WORDS, Parameter(metavar="SPEC")] = None,
    edges: Annotated[Path | None, INPUT_FILE] = None,
    nodes: Annotated[int | None, value(whole(1, 2**62), metavar="N")] = None,
    features: Annotated[Path | None, INPUT_FILE] = None,
    partitions: Annotated[int | Literal["auto"], value(auto_or(whole()), metavar="P")] = "auto",
    seed: Seed = 0,
    overwrite: bool = False,
    verify: bool = False,
    json: bool = False,
) -> None:
    """Cut one large graph into partitions on disk, in bounded memory.

    For example:
      staticgraph partition --data fb15k-237 --partitions 32 --out graph/
      staticgraph partition --edges edges.npy --nodes 1000000 --features features.npy --out graph/

    Args:
        out: folder of the graph.
        data: fb15k-237, cora, citeseer, cornell5, or a .npz (its edges).
        edges: .npy of integers [2, E] or [3, E], in place of --data.
        nodes: with --edges: number of nodes.
        features: with --edges: .npy of [N, F].
        partitions: number of partitions, or auto.
        seed: seed of the new node numbers.
        overwrite: replace the graph in --out.
        verify: read everything back and compare checksums.
        json: print JSON instead of a table.
    """
    if (data is None) == (edges is None):
        raise UsageError("give one of --data and --edges")
    if edges is not None and nodes is None:
        raise UsageError("--edges needs --nodes")
    if edges is None and (nodes is not None or features is not None):
        raise UsageError("--nodes and --features go with --edges; --data brings its own")
    require_graph(data or "")
    from staticgraph import outofcore
    from staticgraph.outofcore.disk.data import open_links

    rows: Any = edges
    count: Any = nodes
    if data is not None:
        links = open_links(data, held_out=0.0)
        rows, count = links.train, links.num_nodes
    status = Status()
    outofcore.partition(
        rows, count, partitions, out, seed=seed, overwrite=overwrite, features=features,
        progress=lambda stage, done: status.show(f"{stage}: {how_many(done, 'edge')}"),
    )  # fmt: skip
    status.clear()
    graph = outofcore.PartitionedGraph(out, verify=verify)
    cells = graph.cell_sizes
    sizes = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "relations": graph.num_relations,
        "partitions": graph.num_partitions,
        "partition_nodes": graph.partition_size,
        "bucket_edges_min": int(cells.min()),
        "bucket_edges_mean": round(float(cells.mean()), 1),
        "bucket_edges_max": int(cells.max()),
        "bytes": sum(record.bytes for record in graph.manifest.files.values()),
    }
    _print_sizes(out, sizes, json)


def _print_sizes(out: Path, sizes: Mapping[str, float], json: bool) -> None:
    """Prints the sizes of what was written to a folder, as JSON or as a table."""
    rows = [(LABELS.get(name, name), f"{size:,}") for name, size in sizes.items()]
    print(to_json(sizes) if json else table(("what", str(out)), rows))
