"""The picture of a dry run: launches of each run by kind, one panel per part of the step."""

from __future__ import annotations

from pathlib import Path

from staticgraph.dryrun.report import PARTS, DryRun

# Okabe and Ito's palette, which people with any form of color vision can distinguish.
COLOURS = {
    "staticgraph": "#0072B2",
    "inductor": "#E69F00",
    "library": "#009E73",
    "copy": "#CC79A7",
    "host": "#D55E00",
}
LABELS = {"staticgraph": "this library's", "inductor": "Inductor's", "library": "torch's own"}


def draw(report: DryRun, path: str | Path) -> None:
    """Draws the launches of a report and writes them as a PNG.

    Raises:
        ValueError: nothing was counted.
    """
    runs = [run for run in report.runs if run.count()]
    if not runs:
        raise ValueError("no run was counted, so there is nothing to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((11, 1.6 + 0.5 * len(runs)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(PARTS), sharex=True, sharey=True, squeeze=False)[0]
    names = [f"{run.mode}, bucket {run.bucket}, {run.phase}" for run in runs]
    for panel, part in zip(panels, PARTS, strict=True):
        left = [0] * len(runs)
        for kind, colour in COLOURS.items():
            counts = [run.count(part, kind) for run in runs]
            if any(run.count(kind=kind) for run in runs):
                panel.barh(names, counts, left=left, color=colour, label=LABELS.get(kind, kind))
            left = [before + count for before, count in zip(left, counts, strict=True)]
        for place, total in enumerate(left):
            panel.annotate(f" {total}", (total, place), va="center", fontsize=8)
        panel.set_title(part, fontsize=10)
        panel.margins(x=0.15)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].set_xlabel("launches")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=5, fontsize=8, frameon=False)
    options = ("with kernels", report.autocast) if report.kernels else (report.autocast,)
    said = ", ".join(option for option in options if option)
    figure.suptitle(f"{report.model} {said}: {report.label}", fontsize=9)
    figure.savefig(path, dpi=150)
