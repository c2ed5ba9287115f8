"""The plot of a memory model: the fitted curve, the measured points, and the errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from staticgraph.files import atomic
from staticgraph.memory.budget import MemoryBudget, scaled
from staticgraph.memory.counts import blocks_in
from staticgraph.memory.model import MemoryModel
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which is distinguishable with any colour vision.
CURVE, FITTED, HELD_OUT, CAP = "#0072B2", "#009E73", "#D55E00", "#CC79A7"
MEBI = 1 << 20
# The error, in percent, below which the label of a bar shows 0.00.
MEETS = 0.005


def save_memory_picture(
    path: Path, memory: MemoryModel, title: str, budget: MemoryBudget | None = None
) -> None:
    """Writes a PNG: bytes over nodes with the fitted curve, and the error at each point.

    Args:
        path: the path of the PNG.
        memory: a memory model with at least one point.
        title: the title of the plot.
        budget: a cap, drawn as a line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user chose
    figure.suptitle(f"{title}: {memory.fit.form} form, measured by {memory.reader}", fontsize=12)
    curve, errors = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_curve(curve, memory, budget)
    draw_errors(errors, memory)
    atomic.save_figure(path, figure, dpi=120)


def draw_curve(axes: Axes, memory: MemoryModel, budget: MemoryBudget | None) -> None:
    """Draws the peak bytes of a step: measured points, and the fit along batches of similar
    graphs."""
    last = memory.checked.capacity if memory.checked else memory.points[-1].capacity
    line = [scaled(last, share) for share in np.linspace(0.0, 1.05, 200)]
    label = f"fitted, batches of like graphs, M = {last.max_graph_nodes}"
    pieces = _pieces(line, memory)
    for number, piece in enumerate(pieces):
        axes.plot(
            [c.nodes for c in piece],
            [memory.predict(c) / MEBI for c in piece],
            color=CURVE,
            label="_" if number else label,  # "_": no legend entry
        )
    around = memory.resident.before_step
    for points, color, marker, label in (
        (memory.points, FITTED, "o", "measured"),
        ((memory.checked,) if memory.checked else (), HELD_OUT, "D", "measured, held out"),
    ):
        if not points:
            continue
        peaks = [p.nbytes + around + memory.batch.of(p.capacity) for p in points]
        nodes = [p.capacity.nodes for p in points]
        axes.scatter(nodes, [b / MEBI for b in peaks], color=color, marker=marker, label=label)
    every = [*memory.points, *([memory.checked] if memory.checked else [])]
    axes.scatter(
        [p.capacity.nodes for p in every],
        [memory.predict(p.capacity) / MEBI for p in every],
        color="black",
        marker="+",
        label="fitted, at the measured points",
    )
    if budget is not None:
        axes.axhline(budget.max_bytes / MEBI, color=CAP, linestyle="--")
        axes.annotate(
            f"cap {human_bytes(budget.max_bytes)}",
            (0.99, budget.max_bytes / MEBI),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=CAP,
        )
    axes.set(xlabel="nodes of the capacity", ylabel="peak of a step, MiB", xlim=(0, None))
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
    title = "points off the curve have other edges, graphs or M"
    if len(pieces) > 1:
        title += "\nwhere it breaks, attention begins to go in other blocks"
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper left")


def _pieces(line: Sequence[Capacity], memory: MemoryModel) -> list[list[Capacity]]:
    """Splits a curve where the number of attention blocks changes: the bytes jump there, back and
    forth where two layouts cost nearly the same, and should not be joined by a line."""
    how = memory.fit.layout, memory.fit.counted
    stretches = [list(each) for _, each in groupby(line, lambda c: len(blocks_in(c, *how)))]
    return [each for each in stretches if len(each) > 1] or [list(line)]


def draw_errors(axes: Axes, memory: MemoryModel) -> None:
    """Draws the fitted minus the measured bytes of each point, in percent of the measured bytes
    that the step adds."""
    points = [*memory.points, *([memory.checked] if memory.checked else [])]
    errors = [round(100 * (memory.fit.predict(p.capacity) / p.nbytes - 1), 4) + 0.0 for p in points]
    colors = [FITTED] * len(memory.points) + [HELD_OUT]
    places = np.arange(len(points))
    axes.barh(places, errors, color=colors[: len(points)])
    axes.scatter(errors, places, color=colors[: len(points)], zorder=3)  # an error of 0 has no bar
    names = [
        f"{p.capacity.nodes:,} / {p.capacity.edges:,} / {p.capacity.graphs:,} / "
        f"{p.capacity.max_graph_nodes}"
        for p in points
    ]
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    largest = max(abs(e) for e in errors)
    widest = max(1.0, 1.3 * largest)
    for place, error in zip(places, errors, strict=True):
        side, way = ("left", 1) if error >= 0 else ("right", -1)
        axes.annotate(
            f"{error:+.2f}%", (error, place), (7 * way, 0), textcoords="offset points",
            va="center", ha=side, fontsize=8,
        )  # fmt: skip
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlim=(-widest, widest), xlabel="error of the fit, %")
    title = "the fit meets every point" if largest < MEETS else "fitted less measured"
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("nodes / edges / graphs / M")
