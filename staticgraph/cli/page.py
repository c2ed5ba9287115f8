"""A finished run as one self-contained HTML page: curves, filling, memory and choices.

The plots are those of the run's picture, as SVG within the page, so that it can be sent, archived
and opened anywhere, and its text can be searched; no script, font or style is loaded.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.table import percent
from staticgraph.training import plots
from staticgraph.training.history import StepRecord, full_steps
from staticgraph.training.report import TrainReport, number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
       max-width: 68rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.sub { color: #555; margin: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
         margin: 1.25rem 0; }
.facts div { border: 1px solid #ddd; border-radius: .4rem; padding: .6rem .8rem; }
.facts b { display: block; font-size: 1.25rem; } .facts span { color: #555; font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e5e5e5; text-align: right; }
th { border-bottom: 2px solid #999; font-weight: 600; } td.text, th.text { text-align: left; }
svg { max-width: 100%; height: auto; } .pair { display: flex; flex-wrap: wrap; gap: 1rem; }
.pair > * { flex: 1 1 26rem; min-width: 0; } .warn { color: #a40000; font-weight: 600; }
"""
VERBS = {"val": "validate"}
MEMORY = {
    "parameters_bytes": "parameters",
    "optimizer_bytes": "optimizer state",
    "graphs_bytes": "graphs",
    "host_peak_bytes": "host memory at its peak, whole process",
    "device_peak_bytes": "device memory at its peak, whole process",
}


def page_of(
    report: TrainReport, steps: Sequence[StepRecord], capacities: Sequence[Capacity]
) -> str:
    """The page as HTML.

    Args:
        report: the report of the run.
        steps: all steps, at least one.
        capacities: the capacities of the plan, by bucket.
    """
    config = report.config
    title = f"{config['model']} on {report.data['name']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_summary(report))}</p>',
        _facts(report, steps),
        "<h2>Learning</h2>",
        _drawn(lambda axes: plots.draw_loss(axes, report, steps), (10.5, 4.2)),
        _table(*report.epoch_table()),
        "<h2>Filling of the fixed shapes</h2>",
        '<div class="pair">',
        _drawn(lambda axes: plots.draw_filling(axes, steps, capacities), (5.8, 3.2)),
        _drawn(lambda axes: plots.draw_spread(axes, steps, capacities), (5.2, 3.2)),
        "</div>",
        _buckets(report, steps),
        "<h2>Memory</h2>",
        _memory(report),
        "<h2>Choices</h2>",
        _choices(report),
        "<h2>Settings</h2>",
        _table(("setting", "value"), [(k, _text(v)) for k, v in config.items()], text=2),
        "<h2>Versions</h2>",
        _table(("package", "version"), sorted(report.runner.versions.items()), text=2),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _summary(report: TrainReport) -> str:
    splits = report.data["splits"]
    counts = ", ".join(f"{count:,} to {VERBS.get(name, name)}" for name, count in splits.items())
    runner = report.runner
    return (
        f"{how_many(report.parameters, 'parameter')}; {counts}; batches of "
        f"{how_many(report.config['batch_size'], 'graph')}; {runner.device}, mode {runner.mode} "
        f"({runner.mode_reason})"
    )


def _facts(report: TrainReport, steps: Sequence[StepRecord]) -> str:
    """The most important numbers, and warnings."""
    graphs = sum(epoch.graphs for epoch in report.epochs)
    seconds = sum(epoch.seconds for epoch in report.epochs)
    last = report.epochs[-1] if report.epochs else None
    facts = [
        ("training graphs per second", f"{graphs / seconds:,.0f}" if seconds else "-"),
        ("steps", f"{len(steps):,}"),
        ("epochs", f"{len(report.epochs)} of {report.config['epochs']}"),
        ("last training loss", number_text(last and last.train_loss)),
        (f"last validation {report.metric}", number_text(last and last.val_metric)),
        (f"test {report.metric}", number_text(report.test_metric)),
    ]
    shown = "".join(f"<div><b>{escape(v)}</b><span>{escape(k)}</span></div>" for k, v in facts)
    return f'<div class="facts">{shown}</div>' + _warnings(report)


def _warnings(report: TrainReport) -> str:
    lines = []
    if report.diverged is not None:
        lines.append(f"diverged in epoch {report.diverged}: the loss is not finite")
    if report.stopped_early is not None:
        lines.append(
            f"stopped after epoch {report.stopped_early}: the validation loss stopped improving"
        )
    if report.resumed_at:
        lines.append(f"resumed: the buckets count what came after step {report.resumed_at:,}")
    return "".join(f'<p class="warn">{escape(line)}</p>' for line in lines)


def _buckets(report: TrainReport, steps: Sequence[StepRecord]) -> str:
    """The buckets; the filling is that of full batches, without the last batch of an epoch."""
    full = full_steps(steps)

    def filled(bucket: int, name: str, limit: int) -> str:
        """Real over physical rows of a bucket's full batches."""
        rows = [getattr(step, name) for step in full if step.bucket == bucket]
        return percent(sum(rows) / (limit * len(rows))) if rows and limit else "-"

    rows = [
        (
            str(b.bucket),
            f"{b.nodes:,}",
            f"{b.edges:,}",
            f"{b.graphs:,}",
            f"{b.batches:,}",
            *(filled(b.bucket, name, getattr(b, name)) for name in ("nodes", "edges", "graphs")),
            f"{b.compiles}",
            f"{b.recordings}",
            "-" if b.step_ms is None else f"{b.step_ms:.2f}",
            "-" if b.step_ms_p90 is None else f"{b.step_ms_p90:.2f}",
        )
        for b in report.runner.buckets
    ]
    headers = (
        *("bucket", "nodes", "edges", "graphs", "steps", "nodes filled*", "edges filled*"),
        *("graphs filled*", "compiles", "recordings", "step ms", "p90 ms"),
    )
    return _table(headers, rows) + "<p>* of full batches</p>"


def _memory(report: TrainReport) -> str:
    rows = [
        (what, human_bytes(count))
        for name, what in MEMORY.items()
        if (count := report.memory.get(name)) is not None
    ]
    for b in report.runner.buckets:
        if b.predicted_bytes is not None:
            measured = "-" if b.measured_bytes is None else human_bytes(b.measured_bytes)
            text = f"predicted {human_bytes(b.predicted_bytes)}, measured {measured}"
            rows.append((f"bucket {b.bucket}", text))
    if not rows:
        return "<p>This run was made by a version that kept no account of it.</p>"
    return _table(("what", "bytes"), rows, text=1)


def _choices(report: TrainReport) -> str:
    runner = report.runner
    rows = [
        (
            f"bucket {choice.bucket}, {choice.phase}",
            choice.way,
            choice.reason,
            "; ".join(map(str, choice.contenders)),
        )
        for choice in runner.choices
    ]
    lines = [
        f"mode {runner.mode}: {runner.mode_reason}",
        f"graphs: {report.data.get('place', '-')}",
    ]
    lines += [str(row) for row in runner.attention]
    lines += [f"fallback: {reason}" for reason in runner.fallbacks] or ["fallbacks: none"]
    listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
    table = _table(("of", "chosen", "because", "measured"), rows, text=4) if rows else ""
    return f"{table}<ul>{listed}</ul>"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], text: int = 0) -> str:
    """A table whose first ``text`` columns are text, the others numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        """A row of HTML with escaped cells; the page's style aligns numbers to the right."""
        kind = [' class="text"' if place < text else "" for place in range(len(cells))]
        pairs = zip(kind, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for k, c in pairs) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="wide"><table>{line("th", headers)}{body}</table></div>'


def _drawn(draw: Callable[[Axes], None], size: tuple[float, float]) -> str:
    """A plot as an ``<svg>`` element, without the XML header before it."""
    if importlib.util.find_spec("matplotlib") is None:
        return "<p>A plot was left out: matplotlib is not installed.</p>"
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return f"<div>{text[text.index('<svg') :]}</div>"


def _text(value: Any) -> str:
    if isinstance(value, list):  # a list of columns
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
