"""Formats ``bench/results`` as Markdown tables, one function per table.

Numbers that a benchmark produced get into a document only through :mod:`bench.fill_figures` and
these functions, so a repeated run changes the file of results and nothing is copied by hand. Each
table ends with a line that names the file and, if the file has them, the versions and the date. A
missing file gives :data:`bench.figures.NOT_MEASURED`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from bench.figures import NOT_MEASURED, markdown
from staticgraph.text.how_many import how_many

Folder = Mapping[str, Any]
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]
DATA = {
    "ogbg-molhiv_train": "ogbg-molhiv, training",
    "ogbg-molhiv_all": "ogbg-molhiv, all",
    "ogbg-molpcba_train": "ogbg-molpcba, training",
    "pcqm4mv2_train_APPROX": "PCQM4Mv2, approximate",
    "esol": "ESOL",
    "code2-like": "like ogbg-code2",
    "ppa-like": "like ogbg-ppa",
    "qm9": "like QM9 with hydrogens",
    "zinc": "like ZINC-250k",
}
PACKAGES = ("torch", "torch_geometric")


def source(name: str, found: Mapping[str, Any]) -> str:
    """Returns the line below a table: file, versions, processor, load and date of the results."""
    versions = found.get("versions") or found.get("setting", {}).get("versions") or {}
    parts = [f"`bench/results/{name}.json`"]
    parts += [f"{package} {versions[package]}" for package in PACKAGES if package in versions]
    if "processor" in found:
        threads = how_many(found["threads"], "thread")
        parts += [f"{found['processor']} ({found['capability']})", threads]
        parts += [f"load {found['load']}", f"commit {found['commit']}"]
    elif "label" not in found:  # what is counted for another device has one
        parts += ["processor not recorded"]
    parts += [
        str(found[key]) for key in ("machine", "device", "label", "date", "note") if key in found
    ]
    return ", ".join(parts) + "."


def table(
    name: str, found: Mapping[str, Any], headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    return f"{markdown(headers, rows)}\n\n{source(name, found)}" if rows else NOT_MEASURED


def listed(folder: Folder, name: str, key: str, columns: Columns) -> str:
    """Returns a table with one line per row of a result.

    Args:
        folder: the results.
        name: name of the result.
        key: key of the result that holds the rows.
        columns: heading -> function that formats a row's cell.
    """
    found = folder.get(name, {})
    rows = [tuple(cell(row) for cell in columns.values()) for row in found.get(key, ())]
    return table(name, found, tuple(columns), rows)


def ratio(found: Mapping[str, float]) -> str:
    return f"{found['median']:.2f} ({found['p10']:.2f} to {found['p90']:.2f})"


def share(value: float) -> str:
    return f"{value:.2%}"


def data_name(name: str) -> str:
    return DATA.get(name, name.removeprefix("tu_"))


# The names of the models written by hand in the documents.
BY_HAND = {
    "gine": "GINE",
    "gcn": "GCN",
    "gat": "GAT",
    "gatv2": "GATv2",
    "pna": "PNA",
    "gps": "GPS",
    "own": "own `MessagePassing` layer, SiLU",
    "gcn, learnt weights": "GCN, weights of edges learnt",
    "molecule gin": "OGB's GIN with a virtual node",
    "molecule gcn": "OGB's GCN with a virtual node",
    "transformer": "TransformerConv",
}


# Those by hand that the README shows, after the published ones.
SHOWN = {"gine", "gcn", "gatv2", "pna", "gps", "own"}


def by_hand(folder: Folder) -> str:
    """Returns one line per model that the README shows: the operations of a step, and how many
    times as fast as PyG at its best the model is in each mode, on one thread."""
    found = folder.get("rewrites", {})
    lines = []
    for row in found.get("rows", ()):
        name, counted = row["model"], row["operations"]
        if row["threads"] == 1 and (name in SHOWN or name not in BY_HAND):
            operations = f"{counted['PyG']} to {counted['rewritten']}"
            ratios = ratio(row["fused"]), ratio(row["eager"])
            lines.append((BY_HAND.get(name, name), operations, *ratios))
    headers = ("model", "operations of a step", "`fused`, times PyG", "`eager`, times PyG")
    return table("rewrites", found, headers, lines)


def break_even(folder: Folder) -> str:
    """Returns how many times as fast as PyG models are: a line per width, a column per batch."""
    found = folder.get("break_even", {})
    rows = found.get("rows", ())
    sizes = sorted({row["batch_size"] for row in rows})
    lines: dict[tuple[str, str, int], dict[int, str]] = {}
    for row, way in itertools.product(rows, ("eager", "fused")):
        line = lines.setdefault((BY_HAND.get(row["model"], row["model"]), way, row["hidden"]), {})
        line[row["batch_size"]] = ratio(row[way])
    return table(
        "break_even",
        found,
        ("model", "mode", "columns", *(f"batch {size}" for size in sizes)),
        [
            (model, f"`{way}`", str(hidden), *(cells[size] for size in sizes))
            for (model, way, hidden), cells in lines.items()
        ],
    )


def rewrites(folder: Folder) -> str:
    """Returns the table of every model."""
    found = folder.get("rewrites", {})
    rows = [
        (
            BY_HAND.get(row["model"], row["model"]),
            f"{row['pyg_graphs_per_second']:,.0f}",
            ratio(row["fused"]),
            ratio(row["eager"]),
            f"{row['operations']['PyG']}",
            f"{row['operations']['rewritten']}",
            f"{row['capture_s']:.1f}",
        )
        for row in found.get("rows", ())
    ]
    headers = ("model", "PyG, graphs/s", "`fused`, times PyG", "`eager`, times PyG")
    more = ("operations, PyG", "rewritten", "capture, s")
    return table("rewrites", found, (*headers, *more), rows)


def launches(folder: Folder) -> str:
    found = folder.get("launches_steps", {})
    ways = ("PyG", "stock, compiled", "kernels, compiled")
    rows = []
    for name, row in found.get("rows", {}).items():
        shown = name.upper().replace("X", "x")
        for part in ("forward", "backward", "optimizer", "total"):
            cells = (f"{row[way][part]:,}" for way in ways)
            rows.append((shown if part == "forward" else "", part, *cells))
        stock = row["stock, compiled"]["total"]
        cells = (f"{row[way]['total'] / stock:.2f}" for way in ways)
        rows.append(("", "of stock compiled", *cells))
    headers = ("model", "", "PyG, eager: operations", "stock layers compiled: launches")
    return table("launches_steps", found, (*headers, "with kernels compiled: launches"), rows)


def gpu_rewrites(folder: Folder) -> str:
    found = folder.get("gpu_rewrites", {})
    rows = []
    for row in sorted(
        found.get("rows", ()), key=lambda row: (row["model"], row["variant"] != "all")
    ):
        variant = row["variant"]
        if variant.startswith("-"):
            variant = f"without `{variant[1:]}`"
        model = f"{row['model'].replace(':', ' ')}, {row['precision']}"
        cells = (variant, str(row["kernels"]), f"{row['busy_us']:,.0f}")
        rows.append((model, *cells))
    headers = ("model, batch 32", "rewrites", "kernels in a step", "us on the device")
    return table("gpu_rewrites", found, headers, rows)


def loading(folder: Folder) -> str:
    found = folder.get("loader", {})
    rows = [
        (name, f"{row['graphs_per_second']:,.0f}", f"{row['p10']:,.0f} to {row['p90']:,.0f}")
        for name, row in found.items()
        if isinstance(row, dict) and "graphs_per_second" in row
    ]
    return table("loader", found, ("contender", "graphs/s", "p10 to p90"), rows)


def crossing(folder: Folder) -> str:
    found = folder.get("loader", {})
    made = found.get("crossing", {})
    rows = [
        (name, f"{made[key]:,}")
        for name, key in (
            ("filled on the host (one copy of its slot)", "bytes a batch, filled on the host"),
            ("from ids", "bytes a batch, ids alone"),
        )
        if key in made
    ]
    headers = ("one batch of 128 molecules of HIV", "bytes across the bus")
    return table("loader", found, headers, rows)


def overflow(folder: Folder) -> str:
    columns: Columns = {
        "data": lambda row: data_name(row["data"]),
        "batch": lambda row: str(row["batch_size"]),
        "nodes, edges filled": lambda row: ", ".join(map(share, row["filled"])),
        "full batches alone": lambda row: ", ".join(map(share, row["full_batches"])),
        "left over": lambda row: f"{row['overflowed']:,}",
        "of batches": lambda row: f"{row['batches']:,}",
    }
    return listed(folder, "overflow", "overflow", columns)


def memory(folder: Folder) -> str:
    columns: Columns = {
        "model": lambda row: row["model"],
        "training": lambda row: (
            f"{row['optimizer']} {row['autocast']}".strip()
            + (f" accumulate {row['accumulate']}" if row["accumulate"] > 1 else "")
        ),
        "form": lambda row: row["form"],
        "predicted": lambda row: f"{row['predicted_bytes'] / 2**20:.1f} MiB",
        "measured": lambda row: f"{row['measured_bytes'] / 2**20:.1f} MiB",
        "error": lambda row: f"{abs(row['error']):.3%}",
    }
    return listed(folder, "memory", "rows", columns)


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


def serving(folder: Folder) -> str:
    found = folder.get("serving", {})
    rows = [
        (
            *name.rsplit(", ", 1),
            f"{row['requests_per_s']:,.0f}",
            f"{row['of_plain']:.1f} times" if "of_plain" in row else "-",
            f"{row['p50_ms']:.0f} ms",
            f"{row['p99_ms']:.0f} ms",
            f"{row['model_us']:,.0f} us",
            f"{row['readers_us']:,.0f} us" if row["readers_us"] else "-",
        )
        for name, row in found.get("results", {}).items()
    ]
    headers = ("server", "body", "requests/s", "of plain PyG", "p50", "p99", "own", "readers")
    return table("serving", found, headers, rows)


TABLES: dict[str, Callable[[Folder], str]] = {
    table_of.__name__.replace("_", "-"): table_of
    for table_of in (
        *(by_hand, break_even, rewrites, launches, gpu_rewrites, loading, crossing),
        *(overflow, memory, links, policies, near, serving),
    )
}
