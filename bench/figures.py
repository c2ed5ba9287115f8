"""Formats the results of a GPU run as Markdown; missing results become "not measured"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

NOT_MEASURED = "not measured"
Results = Mapping[str, Any]


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, or "not measured" if there are no rows."""
    if not rows:
        return NOT_MEASURED
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: Any, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def machine(results: Results) -> str:
    found = results.get("machine", {})
    if not found or found.get("gpu", "none") == "none":
        return f"{NOT_MEASURED}: no GPU"
    return f"{found['gpu']}; {found['versions']}; {found['date']}"


def step_rows(results: Results) -> list[dict[str, Any]]:
    return [
        {**row, "part": part}
        for part, found in results.items()
        if isinstance(found, Mapping)
        for row in found.get("rows", ())
        if isinstance(row, Mapping) and "step_ms" in row
    ]


def steps(results: Results) -> str:
    """Returns the table of all contenders of all rows."""
    headers = (
        "model",
        "batch",
        "precision",
        "mode",
        "step ms (p10 to p90)",
        "latency ms",
        "graphs/s",
        "times PyG",
        "kernels",
        "efficiency",
        "peak MiB",
        "warm-up s",
        "loss after the same steps",
    )
    cells = []
    for row in step_rows(results):
        chosen = f" ({row['chosen']})" if row.get("chosen") else ""
        agrees = "agrees" if row["loss_agrees"] else "**departs**"
        cells.append(
            (
                row["model"],
                str(row["batch_size"]),
                row["precision"],
                row["mode"] + chosen,
                f"{row['step_ms']:.2f} ({row['p10_ms']:.2f} to {row['p90_ms']:.2f})",
                number(row.get("latency_ms", {}).get("median")),
                f"{row['graphs_per_second']:,.0f}",
                number(row["ratio_to_first"]["median"]),
                number(row["kernels"], "d"),
                number(row["node_efficiency"], ".1%"),
                f"{row['peak_bytes'] / 2**20:,.0f}",
                f"{row['warmup_s']:.1f}",
                f"{row['loss']:.4f} {agrees}",
            )
        )
    return markdown(headers, cells)


def summary(results: Results) -> str:
    """Returns one row per model, batch and precision: PyG, the best peer, and the best of ours.

    Only contenders that took turns with one another are compared.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in step_rows(results):
        key = (row["model"], row["batch_size"], row["precision"], row["part"])
        groups.setdefault(key, []).append(row)
    cells = []
    for (model, batch, precision, _), rows in groups.items():
        peers = [r for r in rows if r["mode"].startswith(("pyg", "pad-to"))]
        ours = [r for r in rows if r not in peers and r["loss_agrees"]]
        plain = [r for r in peers if r["mode"] == "pyg"]
        if not (plain and ours):
            continue
        best = min(ours, key=lambda r: r["step_ms"])
        others = [r for r in peers if r not in plain]
        peer = min(others, key=lambda r: r["step_ms"]) if others else None
        cells.append(
            (
                f"{model}, batch {batch}, {precision}",
                f"{plain[0]['step_ms']:.2f} ms",
                f"{peer['step_ms']:.2f} ms ({peer['mode']})" if peer else NOT_MEASURED,
                f"{best['step_ms']:.2f} ms ({best['mode']})",
                f"{best['ratio_to_first']['median']:.2f}",
                f"{peer['step_ms'] / best['step_ms']:.2f}" if peer else NOT_MEASURED,
            )
        )
    headers = ("a training step", "PyG eager", "best peer", "here", "times PyG", "times best peer")
    return markdown(headers, cells)


def training(results: Results) -> str:
    """Returns the table of epochs with loading."""
    cells = [
        (
            name,
            f"{row['graphs_per_second']:,.0f}",
            f"{row['ratio_to_best_pyg']['median']:.2f}",
            f"{row['loss']:.5f}",
        )
        for name, row in results.get("training", {}).items()
        if isinstance(row, Mapping) and "graphs_per_second" in row
    ]
    return markdown(("end to end", "graphs/s", "times the best PyG", "last loss"), cells)


def curves(results: Results) -> str:
    cells = []
    for name, run in results.get("curves", {}).items():
        if isinstance(run, Mapping) and run.get("epoch_s"):
            cells.append(
                (
                    name,
                    " ".join(f"{loss:.4f}" for loss in run["epoch_loss"]),
                    f"{run['validation_auc'][-1]:.4f}",
                    f"{min(run['epoch_s']):.2f}",
                    f"{max(run['graphs_per_second']):,.0f}",
                    f"{run['warmup_s']:.1f}",
                )
            )
    headers = ("model, mode, seed", "loss of each epoch", "validation AUC", "s an epoch, best")
    return markdown((*headers, "graphs/s, best", "warm-up s"), cells)


def pool(results: Results) -> str:
    found = results.get("pool", {}).get("six buckets", {})
    if not found.get("largest_alone", {}).get("reserved_bytes"):
        return NOT_MEASURED
    cells = []
    for name in ("largest_alone", "largest_first", "smallest_first"):
        row = found[name]
        share = row["reserved_bytes"] / found["largest_alone"]["reserved_bytes"]
        cells.append(
            (
                name.replace("_", " "),
                f"{row['reserved_bytes'] / 2**20:,.0f}",
                f"{share:.2f}",
                f"{row['left_after_teardown_bytes'] / 2**20:,.0f}",
            )
        )
    return markdown(("recorded", "MiB", "times the largest alone", "MiB after teardown"), cells)


def memory(results: Results) -> str:
    cells = [
        (
            f"{row['model']}, {row['optimizer']} {row['autocast']}".strip(),
            f"{row['predicted_bytes'] / 2**20:,.1f}",
            f"{row['measured_bytes'] / 2**20:,.1f}",
            f"{row['error']:+.1%}",
        )
        for part, found in results.items()
        if part.startswith("memory") and isinstance(found, Mapping)
        for row in found.get("rows", ())
        if isinstance(row, Mapping) and row.get("device") == "cuda"
    ]
    return markdown(("a step of", "predicted MiB", "measured MiB", "error"), cells)


def settled(results: Results) -> str:
    cells = []
    for name, found in results.get("settle", {}).items():
        if not isinstance(found, Mapping) or name == "versions":
            continue
        told = "; ".join(f"{key}: {value}" for key, value in found.items() if key != "seconds")
        cells.append((name, told.replace("|", "/").replace("\n", " ")[:600]))
    return markdown(("question", "answer"), cells)


def look(results: Results) -> str:
    """Returns the analysis of each recorded step, and its six longest kernels."""
    blocks = []
    for found in results.values():
        if not isinstance(found, Mapping) or "rows" not in found.get("kernels", {}):
            continue
        ran, host_us = found["kernels"], found.get("host", {}).get("host_us")
        times = next((row for row in found["rows"] if row["mode"] == found["look"]), {})
        blocks.append(
            f"{times.get('model')}: {ran['kernels']} kernels in {ran['span_us']:,.0f} us, "
            f"{ran['share_of_gaps']:.0%} of it gaps; host {number(host_us, ',.0f')} us, "
            f"latency {number(times.get('latency_ms', {}).get('median'))} ms, back to back "
            f"{number(times.get('step_ms'))} ms; verified: "
            f"{found.get('verify', {}).get('passed', 'no')}"
        )
        cells = [
            (
                row["kernel"].replace("|", "/").replace(" ", "")[:60],
                str(row["launches"]),
                f"{row['us']:.1f}",
                number(row["share_of_roofline"], ".0%"),
            )
            for row in ran["rows"][:6]
        ]
        blocks.append(markdown(("kernel", "launches", "us", "of a copy's speed"), cells))
    return "\n\n".join(blocks) or NOT_MEASURED


def layers(results: Results) -> str:
    found = results.get("layers", {}).get("layers", {})
    if "yes" not in found or results["layers"].get("device", "cpu").startswith("cpu"):
        return NOT_MEASURED
    return f"{found['yes']} of {found['of']} layers record and replay as eager computes."


RENDERED: dict[str, Callable[[Results], str]] = {
    "machine": machine,
    "summary": summary,
    "steps": steps,
    "training": training,
    "curves": curves,
    "pool": pool,
    "memory": memory,
    "look": look,
    "settled": settled,
    "layers": layers,
}
