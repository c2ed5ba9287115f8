"""Tables of the results for one large graph; see :mod:`bench.tables`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import mean, median
from typing import Any

from bench.tables import Columns, Folder, listed, ratio, table

Row = Mapping[str, Any]
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
    ways = {"pyg": "PyG in memory", "memory": "in memory"}

    def beside_pyg(text: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda row: "" if row["way"] == "pyg" else text(row)

    columns: Columns = {
        "graph": lambda row: GRAPHS.get(row["graph"], row["graph"]),
        "way": lambda row: ways.get(row["way"], row["way"]),
        "pairs": lambda row: str(row["seeds"]),
        "accuracy": lambda row: f"{row['mean']:.4f}",
        "deviation": lambda row: f"{row['deviation']:.4f}",
        "minus PyG": beside_pyg(lambda row: f"{row['difference']:+.4f} ± {row['error']:.4f}"),
        "p": beside_pyg(lambda row: f"{row['p']:.3f}"),
    }
    return listed(folder, "outofcore_nodes", "rows", columns)


def near(folder: Folder) -> str:
    """Returns one row per graph: PyG's accuracy, and how far each way is from it."""
    found = folder.get("outofcore_near", {})
    graphs: dict[str, dict[str, Row]] = {}
    for row in found.get("rows", ()):
        graphs.setdefault(row["graph"], {})[row["way"]] = row
    headers = {"random": "random others", "near": "near", "dispersed": "Dispersed"}
    rows = [
        (
            GRAPHS.get(graph, graph),
            str(ways["pyg"]["seeds"]),
            f"{ways['pyg']['mean']:.4f}, {ways['pyg']['deviation']:.4f}",
            *(f"{ways[way]['difference']:+.4f} ± {ways[way]['error']:.4f}" for way in headers),
        )
        for graph, ways in graphs.items()
    ]
    columns = ("graph", "pairs", "PyG, deviation", *headers.values())
    return table("outofcore_near", found, columns, rows)


def sampling(folder: Folder) -> str:
    columns: Columns = {
        "layers": lambda row: str(row["layers"]),
        "ms": lambda row: f"{row['ms']:.2f}",
        "twin ms": lambda row: f"{row['other_ms']:.1f}",
        "nodes": lambda row: f"{row['nodes']:,}",
        "edges": lambda row: f"{row['edges']:,}",
        "reuse": lambda row: f"{row['reuse']:.2f}",
    }
    return listed(folder, "outofcore_sample", "layers", columns)


def hops(folder: Folder) -> str:
    columns: Columns = {
        "graph": lambda row: GRAPHS.get(row["graph"], row["graph"]),
        "fan-outs": lambda row: ", ".join(map(str, row["fanouts"])),
        "seeds": lambda row: f"{row['batch_size']:,}",
        "deviation of rows": lambda row: f"{row['deviation_of_rows']:.1%}",
        "efficiency": lambda row: f"{row['efficiency']:.2f}",
        "bound over mean": lambda row: f"{row['bound_over_mean']:.1f}",
    }
    return listed(folder, "outofcore_hops", "hops", columns)


TABLES: dict[str, Callable[[Folder], str]] = {
    "links": links,
    "policies": policies,
    "nodes": nodes,
    "near": near,
    "sampling": sampling,
    "hops": hops,
}
