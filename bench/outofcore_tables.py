"""What ``bench/results`` holds of one large graph, as tables; see :mod:`bench.tables`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import mean, median
from typing import Any

from bench.tables import Folder, ratio, table

GRAPHS = {"cora": "Cora", "citeseer": "CiteSeer", "cornell5": "Cornell5"}


def links(folder: Folder) -> str:
    found = folder.get("outofcore_fb15k237", {})
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for run in found.get("runs", ()):
        runs.setdefault(run["policy"], []).append(run)
    rows = [
        (
            re.sub(r", (logical=None|assignment='\w+')", "", policy),
            str(some[0]["partitions"]),
            " ".join(f"{run['mrr']:.4f}" for run in some),
            f"{mean(run['mrr'] for run in some):.4f}",
            str(some[0]["partitions_read"]),
            f"{mean(run['bias'] for run in some):.2f}",
        )
        for policy, some in runs.items()
    ]
    headers = ("policy", "partitions", "MRR of each seed", "mean", "partitions read per epoch")
    return table("outofcore_fb15k237", found, (*headers, "bias"), rows)


def policies(folder: Folder) -> str:
    found = folder.get("outofcore_policies", {})
    rows = [
        (
            row["way"],
            str(row["partitions"]),
            str(row["batches"]),
            str(row["states"]),
            f"{median(row['cpu_s'][1:]):.1f}",
            ratio(row["cpu_ratio"]),
            ratio(row["time_ratio"]),
            f"{sum(row['waited_s']) / sum(row['epoch_s']):.2%}",
        )
        for row in found.get("rows", ())
    ]
    headers = ("way", "partitions", "batches", "states", "CPU of an epoch, s", "of in memory")
    return table("outofcore_policies", found, (*headers, "by the clock", "waited"), rows)


def nodes(folder: Folder) -> str:
    found = folder.get("outofcore_nodes", {})
    ways = {"pyg": "PyG in memory", "memory": "in memory"}
    rows = [
        (
            GRAPHS.get(row["graph"], row["graph"]),
            ways.get(row["way"], row["way"]),
            str(row["seeds"]),
            f"{row['mean']:.4f}",
            f"{row['deviation']:.4f}",
            "" if row["way"] == "pyg" else f"{row['difference']:+.4f} ± {row['error']:.4f}",
            "" if row["way"] == "pyg" else f"{row['p']:.3f}",
        )
        for row in found.get("rows", ())
    ]
    headers = ("graph", "way", "pairs", "accuracy", "deviation", "minus PyG", "p")
    return table("outofcore_nodes", found, headers, rows)


def sampling(folder: Folder) -> str:
    found = folder.get("outofcore_sample", {})
    rows = [
        (
            str(row["layers"]),
            f"{row['ms']:.2f}",
            f"{row['other_ms']:.1f}",
            f"{row['nodes']:,}",
            f"{row['edges']:,}",
            f"{row['reuse']:.2f}",
        )
        for row in found.get("layers", ())
    ]
    headers = ("layers", "ms", "twin ms", "nodes", "edges", "reuse")
    return table("outofcore_sample", found, headers, rows)


def hops(folder: Folder) -> str:
    found = folder.get("outofcore_hops", {})
    rows = [
        (
            GRAPHS.get(row["graph"], row["graph"]),
            ", ".join(map(str, row["fanouts"])),
            f"{row['batch_size']:,}",
            f"{row['deviation_of_rows']:.1%}",
            f"{row['efficiency']:.2f}",
            f"{row['bound_over_mean']:.1f}",
        )
        for row in found.get("hops", ())
    ]
    headers = ("graph", "fan-outs", "seeds", "deviation of rows", "efficiency", "bound over mean")
    return table("outofcore_hops", found, headers, rows)


TABLES: dict[str, Callable[[Folder], str]] = {
    "links": links,
    "policies": policies,
    "nodes": nodes,
    "sampling": sampling,
    "hops": hops,
}
