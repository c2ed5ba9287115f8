"""Formats ``bench/results`` as Markdown tables, one function per table.

Numbers that a benchmark produced get into a document only through :mod:`bench.fill_figures` and
these functions, so a repeated run changes the file of results and nothing is copied by hand. Each
table ends with a line that names the file and, if the file has them, the versions and the date. A
missing file gives :data:`bench.figures.NOT_MEASURED`.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import mean, median
from typing import Any

from bench.figures import NOT_MEASURED, Columns, Row, markdown, number
from staticgraph.text.how_many import how_many

Folder = Mapping[str, Any]
PACKAGES = ("torch", "torch_geometric")


def source(name: str, results: Row) -> str:
    """Returns the line below a table: file, versions, processor, load and date of the results."""
    versions = results.get("versions", {})
    parts = [f"`bench/results/{name}.json`"]
    parts += [f"{package} {versions[package]}" for package in PACKAGES if package in versions]
    if "processor" in results:
        threads = how_many(results["threads"], "thread")
        parts += [f"{results['processor']} ({results['capability']})", threads]
        parts += [f"load {results['load']}", f"commit {results['commit']}"]
    elif "label" not in results:  # what is counted for another device has one
        parts += ["processor not recorded"]
    parts += [
        str(results[key])
        for key in ("machine", "device", "label", "date", "note")
        if key in results
    ]
    return ", ".join(parts) + "."


def table(folder: Folder, name: str, columns: Columns, rows: Iterable[Any] | None = None) -> str:
    """Returns a table with its source.

    Args:
        folder: the results.
        name: name of the result.
        columns: heading -> function that formats a row's cell.
        rows: by default the result's own.
    """
    results = folder.get(name, {})
    shown = markdown(columns, results.get("rows", ()) if rows is None else rows)
    return shown if shown == NOT_MEASURED else f"{shown}\n\n{source(name, results)}"


def text(key: str) -> Callable[[Row], str]:
    """Returns the column that shows a row's value as it is."""
    return lambda row: str(row[key])


def ratio(key: str) -> Callable[[Row], str]:
    """Returns the column that shows the median and the spread of a row's ratio."""
    return lambda row: "{median:.2f} ({p10:.2f} to {p90:.2f})".format(**row[key])


# The names of the models written by hand in the documents.
BY_HAND = {
    "gine": "GINE",
    "gcn": "GCN",
    "gat": "GAT",
    "gatv2": "GATv2",
    "pna": "PNA",
    "gps": "GPS",
    "own": "own `MessagePassing` layer, SiLU",
    "gcn by hand, learnt weights": "GCN by hand, weights of edges learnt",
    "molecule gin": "OGB's GIN with a virtual node",
    "molecule gcn": "OGB's GCN with a virtual node",
    "transformer": "TransformerConv",
}


# Those by hand that the README shows, after the published ones.
SHOWN = {"gine", "gcn", "gatv2", "pna", "gps", "own"}


def model_name(row: Row) -> str:
    return BY_HAND.get(row["model"], row["model"])


def by_hand(folder: Folder) -> str:
    """Returns one line per model that the README shows: the operations of a step, and how many
    times as fast as PyG at its best the model is in each mode, on one thread."""
    columns: Columns = {
        "model": model_name,
        "operations of a step": lambda row: "{PyG} to {rewritten}".format(**row["operations"]),
        "`fused`, times PyG": ratio("fused"),
        "`eager`, times PyG": ratio("eager"),
    }
    rows = [
        row
        for row in folder.get("rewrites", {}).get("rows", ())
        if row["threads"] == 1 and (row["model"] in SHOWN or row["model"] not in BY_HAND)
    ]
    return table(folder, "rewrites", columns, rows)


def break_even(folder: Folder) -> str:
    """Returns how many times as fast as PyG models are: a line per width, a column per batch."""
    results = folder.get("break_even", {}).get("rows", ())
    lines: dict[Any, dict[int, str]] = defaultdict(dict)
    for row, way in itertools.product(results, ("eager", "fused")):
        lines[model_name(row), way, row["hidden"]][row["batch_size"]] = ratio(way)(row)
    columns: dict[str, Callable[[Any], str]] = {
        "model": lambda line: line[0][0],
        "mode": lambda line: f"`{line[0][1]}`",
        "columns": lambda line: str(line[0][2]),
    }
    for size in sorted({row["batch_size"] for row in results}):
        columns[f"batch {size}"] = lambda line, size=size: line[1][size]
    return table(folder, "break_even", columns, lines.items())


def rewrites(folder: Folder) -> str:
    """Returns the table of every model."""
    columns: Columns = {
        "model": model_name,
        "PyG, graphs/s": number("pyg_graphs_per_second", ",.0f"),
        "`fused`, times PyG": ratio("fused"),
        "`eager`, times PyG": ratio("eager"),
        "operations, PyG": lambda row: str(row["operations"]["PyG"]),
        "rewritten": lambda row: str(row["operations"]["rewritten"]),
        "capture, s": number("capture_s", ".1f"),
    }
    return table(folder, "rewrites", columns)


def launches(folder: Folder) -> str:
    ways = {
        "PyG, eager: operations": "PyG",
        "stock layers compiled: launches": "stock, compiled",
        "with kernels compiled: launches": "kernels, compiled",
    }
    columns: dict[str, Callable[[Any], str]] = {"model": lambda row: row[0], "": lambda row: row[1]}
    for heading, way in ways.items():
        columns[heading] = lambda row, way=way: row[2][way]
    rows = []
    for name, counts in folder.get("launches_steps", {}).get("rows", {}).items():
        for part in ("forward", "backward", "optimizer", "total"):
            model = name.upper().replace("X", "x") if part == "forward" else ""
            rows.append((model, part, {way: f"{counts[way][part]:,}" for way in ways.values()}))
        stock = counts["stock, compiled"]["total"]
        shares = {way: f"{counts[way]['total'] / stock:.2f}" for way in ways.values()}
        rows.append(("", "of stock compiled", shares))
    return table(folder, "launches_steps", columns, rows)


def gpu_rewrites(folder: Folder) -> str:
    def variant(row: Row) -> str:
        name = row["variant"]
        return f"without `{name[1:]}`" if name.startswith("-") else name

    columns: Columns = {
        "model, batch 32": lambda row: f"{row['model'].replace(':', ' ')}, {row['precision']}",
        "rewrites": variant,
        "kernels in a step": text("kernels"),
        "us on the device": number("busy_us", ",.0f"),
    }
    rows = folder.get("gpu_rewrites", {}).get("rows", ())
    ordered = sorted(rows, key=lambda row: (row["model"], row["variant"] != "all"))
    return table(folder, "gpu_rewrites", columns, ordered)


def loading(folder: Folder) -> str:
    columns: Columns = {
        "contender": text("name"),
        "graphs/s": number("graphs_per_second", ",.0f"),
        "p10 to p90": lambda row: f"{row['p10']:,.0f} to {row['p90']:,.0f}",
    }
    rows = [
        {"name": name, **row}
        for name, row in folder.get("loader", {}).items()
        if isinstance(row, dict) and "graphs_per_second" in row
    ]
    return table(folder, "loader", columns, rows)


def crossing(folder: Folder) -> str:
    rows = {
        "filled on the host (one copy of its slot)": "bytes a batch, filled on the host",
        "from ids": "bytes a batch, ids alone",
    }
    columns: Columns = {
        "one batch of 128 molecules of HIV": lambda row: row[0],
        "bytes across the bus": lambda row: f"{folder['loader']['crossing'][row[1]]:,}",
    }
    return table(folder, "loader", columns, rows.items() if "loader" in folder else ())


DATA = {"ogbg-molhiv_train": "ogbg-molhiv, training"}


def overflow(folder: Folder) -> str:
    def shares(key: str) -> Callable[[Row], str]:
        return lambda row: ", ".join(f"{share:.2%}" for share in row[key])

    columns: Columns = {
        "data": lambda row: DATA.get(row["data"], row["data"].removeprefix("tu_")),
        "batch": text("batch_size"),
        "nodes, edges filled": shares("filled"),
        "full batches alone": shares("full_batches"),
        "left over": number("overflowed", ",d"),
        "of batches": number("batches", ",d"),
    }
    return table(folder, "overflow", columns, folder.get("overflow", {}).get("overflow", ()))


def memory(folder: Folder) -> str:
    columns: Columns = {
        "model": text("model"),
        "training": lambda row: (
            f"{row['optimizer']} {row['autocast']}".strip()
            + (f" accumulate {row['accumulate']}" if row["accumulate"] > 1 else "")
        ),
        "form": text("form"),
        "predicted": lambda row: f"{row['predicted_bytes'] / 2**20:.1f} MiB",
        "measured": lambda row: f"{row['measured_bytes'] / 2**20:.1f} MiB",
        "error": lambda row: f"{abs(row['error']):.3%}",
    }
    return table(folder, "memory", columns)


def links(folder: Folder) -> str:
    def average(key: str, form: str) -> Callable[[list[Row]], str]:
        return lambda runs: format(mean(run[key] for run in runs), form)

    policy = r", (logical=None|assignment='\w+')"
    columns: dict[str, Callable[[Any], str]] = {
        "policy": lambda runs: re.sub(policy, "", runs[0]["policy"]),
        "partitions": lambda runs: str(runs[0]["partitions"]),
        "MRR of each seed": lambda runs: " ".join(f"{run['mrr']:.4f}" for run in runs),
        "mean": average("mrr", ".4f"),
        "partitions read per epoch": lambda runs: str(runs[0]["partitions_read"]),
        "bias": average("bias", ".2f"),
    }
    groups: dict[str, list[Row]] = defaultdict(list)
    for run in folder.get("outofcore_fb15k237", {}).get("runs", ()):
        groups[run["policy"]].append(run)
    return table(folder, "outofcore_fb15k237", columns, groups.values())


def policies(folder: Folder) -> str:
    columns: Columns = {
        "way": text("way"),
        "partitions": text("partitions"),
        "batches": text("batches"),
        "states": text("states"),
        "CPU of an epoch, s": lambda row: f"{median(row['cpu_s'][1:]):.1f}",
        "of in memory": ratio("cpu_ratio"),
        "by the clock": ratio("time_ratio"),
        "waited": lambda row: f"{sum(row['waited_s']) / sum(row['epoch_s']):.2%}",
    }
    return table(folder, "outofcore_policies", columns)


GRAPHS = {"cora": "Cora", "citeseer": "CiteSeer", "cornell5": "Cornell5"}


def near(folder: Folder) -> str:
    """Returns one row per graph: PyG's accuracy, and how far each way is from it."""
    graphs: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in folder.get("outofcore_near", {}).get("rows", ()):
        graphs[row["graph"]][row["way"]] = row

    def difference(way: str) -> Callable[[Any], str]:
        return lambda item: "{difference:+.4f} ± {error:.4f}".format(**item[1][way])

    columns: dict[str, Callable[[Any], str]] = {
        "graph": lambda item: GRAPHS[item[0]],
        "pairs": lambda item: str(item[1]["pyg"]["seeds"]),
        "PyG, deviation": lambda item: "{mean:.4f}, {deviation:.4f}".format(**item[1]["pyg"]),
        "random others": difference("random"),
        "near": difference("near"),
        "Dispersed": difference("dispersed"),
    }
    return table(folder, "outofcore_near", columns, graphs.items())


def serving(folder: Folder) -> str:
    columns: Columns = {
        "server": lambda row: row["name"].rpartition(", ")[0],
        "body": lambda row: row["name"].rpartition(", ")[2],
        "requests/s": number("requests_per_s", ",.0f"),
        "of plain PyG": lambda row: f"{row['of_plain']:.1f} times",
        "p50": lambda row: f"{row['p50_ms']:.0f} ms",
        "p99": lambda row: f"{row['p99_ms']:.0f} ms",
        "own": lambda row: f"{row['model_us']:,.0f} us",
        "readers": lambda row: f"{row['readers_us']:,.0f} us" if row["readers_us"] else "-",
    }
    results = folder.get("serving", {}).get("results", {})
    return table(folder, "serving", columns, [{"name": k, **row} for k, row in results.items()])


TABLES: dict[str, Callable[[Folder], str]] = {
    table_of.__name__.replace("_", "-"): table_of
    for table_of in (
        *(by_hand, break_even, rewrites, launches, gpu_rewrites, loading, crossing),
        *(overflow, memory, links, policies, near, serving),
    )
}
