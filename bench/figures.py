"""Formats the results of a GPU run as Markdown; missing results become "not measured"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

NOT_MEASURED = "not measured"
Row = Mapping[str, Any]
# Heading -> function that formats a row's cell.
Columns = Mapping[str, Callable[[Any], str]]


def markdown(columns: Columns, rows: Iterable[Any]) -> str:
    """Returns a table, or "not measured" if there are no rows."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    lines = [list(columns), ["---"] * len(columns), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) if cells else NOT_MEASURED


def number(key: str, form: str, scale: float = 1) -> Callable[[Row], str]:
    """Returns the column that formats a row's number, or ``-`` where it has none."""

    def cell(row: Row) -> str:
        return "-" if row.get(key) is None else format(scale * row[key], form)

    return cell


def machine(results: Row) -> str:
    here = results.get("machine", {})
    if here.get("gpu", "none") == "none":
        return f"{NOT_MEASURED}: no GPU"
    return f"{here['gpu']}; {here['versions']}; {here['date']}"


def parts(results: Row) -> dict[str, Any]:
    """Returns the measurements among results; the rest says where and when they were made."""
    return {name: part for name, part in results.items() if isinstance(part, Mapping)}


def step_rows(results: Row) -> list[dict[str, Any]]:
    return [
        {**row, "part": name}
        for name, part in parts(results).items()
        for row in part.get("rows", ())
        if "step_ms" in row
    ]


def steps(results: Row) -> str:
    """Returns the table of all contenders of all rows."""
    columns: Columns = {
        "model": lambda row: row["model"],
        "batch": lambda row: str(row["batch_size"]),
        "precision": lambda row: row["precision"],
        "mode": lambda row: row["mode"] + (f" ({row['chosen']})" if row.get("chosen") else ""),
        "step ms (p10 to p90)": lambda row: (
            f"{row['step_ms']:.2f} ({row['p10_ms']:.2f} to {row['p90_ms']:.2f})"
        ),
        "latency ms": lambda row: f"{row['latency_ms']['median']:.2f}",
        "graphs/s": number("graphs_per_second", ",.0f"),
        "times PyG": lambda row: f"{row['ratio_to_first']['median']:.2f}",
        "kernels": number("kernels", ".0f"),
        "efficiency": number("node_efficiency", ".1%"),
        "peak MiB": number("peak_bytes", ",.0f", 2**-20),
        "warm-up s": number("warmup_s", ".1f"),
        "loss after the same steps": lambda row: (
            f"{row['loss']:.4f} {'agrees' if row['loss_agrees'] else '**departs**'}"
        ),
    }
    return markdown(columns, step_rows(results))


def summary(results: Row) -> str:
    """Returns one row per model, batch and precision: PyG, the best peer, and the best of ours.

    Only contenders that took turns with one another are compared.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in step_rows(results):
        groups[row["model"], row["batch_size"], row["precision"], row["part"]].append(row)
    rows = []
    for (model, batch, precision, _), group in groups.items():
        plain = [row for row in group if row["mode"] == "pyg"]
        peers = [row for row in group if row["mode"].startswith(("pyg-", "pad-to"))]
        ours = [r for r in group if r not in plain and r not in peers and r["loss_agrees"]]
        if not (plain and ours):
            continue
        best, peer = (min(some, key=lambda r: r["step_ms"], default=None) for some in (ours, peers))
        assert best is not None
        rows.append(
            {
                "a training step": f"{model}, batch {batch}, {precision}",
                "PyG eager": f"{plain[0]['step_ms']:.2f} ms",
                "best peer": peer and f"{peer['step_ms']:.2f} ms ({peer['mode']})",
                "here": f"{best['step_ms']:.2f} ms ({best['mode']})",
                "times PyG": f"{best['ratio_to_first']['median']:.2f}",
                "times best peer": peer and f"{peer['step_ms'] / best['step_ms']:.2f}",
            }
        )
    columns = rows[0] if rows else ()
    return markdown({key: lambda row, key=key: row[key] or NOT_MEASURED for key in columns}, rows)


def curves(results: Row) -> str:
    columns: Columns = {
        "model, mode, seed": lambda row: row["name"],
        "loss of each epoch": lambda row: " ".join(f"{loss:.4f}" for loss in row["epoch_loss"]),
        "validation AUC": lambda row: f"{row['validation_auc'][-1]:.4f}",
        "s an epoch, best": lambda row: f"{min(row['epoch_s']):.2f}",
        "graphs/s, best": lambda row: f"{max(row['graphs_per_second']):,.0f}",
        "warm-up s": number("warmup_s", ".1f"),
    }
    runs = parts(results.get("curves", {})).items()
    return markdown(columns, [{"name": name, **run} for name, run in runs if "epoch_s" in run])


def pool(results: Row) -> str:
    buckets = results.get("pool", {}).get("six buckets", {})
    alone = buckets.get("largest_alone", {}).get("reserved_bytes")
    orders = ("largest_alone", "largest_first", "smallest_first") if alone else ()
    columns: Columns = {
        "recorded": lambda row: row["name"].replace("_", " "),
        "MiB": number("reserved_bytes", ",.0f", 2**-20),
        "times the largest alone": lambda row: f"{row['reserved_bytes'] / alone:.2f}",
        "MiB after teardown": number("left_after_teardown_bytes", ",.0f", 2**-20),
    }
    return markdown(columns, [{"name": name, **buckets[name]} for name in orders])


def settled(results: Row) -> str:
    def text(answer: Row) -> str:
        lines = "; ".join(f"{key}: {value}" for key, value in answer.items() if key != "seconds")
        return lines.replace("|", "/").replace("\n", " ")[:600]

    columns: Columns = {"question": lambda row: row[0], "answer": lambda row: text(row[1])}
    questions = parts(results.get("settle", {})).items()
    return markdown(columns, [row for row in questions if "seconds" in row[1]])


def look(results: Row) -> str:
    """Returns the analysis of each recorded step, and its six longest kernels."""
    columns: Columns = {
        "kernel": lambda row: row["kernel"].replace("|", "/").replace(" ", "")[:60],
        "launches": lambda row: str(row["launches"]),
        "us": number("us", ".1f"),
        "of a copy's speed": number("share_of_roofline", ".0%"),
    }
    blocks = []
    for part in parts(results).values():
        if "rows" not in part.get("kernels", {}):
            continue
        ran = part["kernels"]
        # Without times if they were not those of replays.
        times = next(row for row in part["rows"] if row["mode"] == part["look"])
        host_us = number("host_us", ",.0f")(part.get("host", {}))
        latency_ms = number("median", ".2f")(times.get("latency_ms", {}))
        blocks.append(
            f"{times['model']}: {ran['kernels']} kernels in {ran['span_us']:,.0f} us, "
            f"{ran['share_of_gaps']:.0%} of it gaps; host {host_us} us, "
            f"latency {latency_ms} ms, back to back {number('step_ms', '.2f')(times)} ms; "
            f"verified: {part.get('verify', {}).get('passed', 'no')}"
        )
        blocks.append(markdown(columns, ran["rows"][:6]))
    return "\n\n".join(blocks) or NOT_MEASURED


RENDERED: dict[str, Callable[[Row], str]] = {
    "machine": machine,
    "summary": summary,
    "steps": steps,
    "curves": curves,
    "pool": pool,
    "look": look,
    "settled": settled,
}
