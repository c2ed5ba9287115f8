"""``staticgraph convert``: writes any data set as a store on disk, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from staticgraph.cli.loading import require_names
from staticgraph.cli.partition import print_sizes
from staticgraph.training.options import OUTPUT_FOLDER, WHOLE, DataOptions, Seed, value, whole


def run(
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
    from staticgraph.datasets.convert import convert

    store = convert(
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
    print_sizes(out, sizes, json)
