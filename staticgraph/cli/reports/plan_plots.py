"""The plots of a plan: the sizes of graphs, the efficiency of limits, and the filling of packs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.files import atomic
from staticgraph.packing.pack import Packing
from staticgraph.plans.limits import EfficiencyMap, efficiency_map
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.plans.several import SeveralChoice, knee
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.how_many import how_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which is distinguishable with any colour vision.
NODES, EDGES, GRAPHS, MARK = "#0072B2", "#E69F00", "#009E73", "#D55E00"
LINES = (MARK, EDGES, GRAPHS, "#CC79A7", "#56B4E9")
# The map's limits go up to this multiple of the largest graph, with this many steps per axis.
MAP_REACH, MAP_STEPS = 3.0, 36
# The axis of costs spans at least this many percent, so that small savings look small. Below
# FALLS_FAR percent it is logarithmic, since a linear one would crowd the points.
LEAST_SPAN, FALLS_FAR = 10.0, 10.0
# The margin above and below the points, as a share of that span.
ROOM = 0.06
# Limits up to this multiple of the largest graph are drawn with the graphs; larger ones would leave
# the graphs a corner, and appear only in the legend.
NEAR = 1.5
# The horizontal padding of each panel, in inches.
BETWEEN = 0.12


def map_around(histogram: SizeHistogram, max_graphs: int | None = None) -> EfficiencyMap:
    """Efficiencies over limits from the largest graph upwards (paper, figure 5)."""
    nodes, edges = histogram.maxima[:2].tolist()
    grain = max(1, int(np.gcd.reduce(histogram.sizes[:, 1])))
    steps = np.linspace(1.0, MAP_REACH, MAP_STEPS)
    return efficiency_map(
        histogram,
        np.unique(np.ceil(max(1, nodes) * steps).astype(np.int64)),
        np.unique(np.ceil(max(1, edges) * steps / grain).astype(np.int64) * grain),
        max_graphs=max_graphs,
    )


def save_map(path: Path, shown: EfficiencyMap) -> None:
    """Writes the map as ``max_nodes,max_edges,harmonic_mean``."""
    lines = ["max_nodes,max_edges,harmonic_mean"]
    for a, nodes in enumerate(shown.nodes):
        for b, edges in enumerate(shown.edges):
            lines.append(f"{nodes},{edges},{shown.harmonic[a, b]:.6f}")
    atomic.write_text(path, "\n".join(lines) + "\n")


def save_plan_picture(
    path: Path,
    histogram: SizeHistogram,
    shown: EfficiencyMap,
    packings: Sequence[Packing],
    plan: BucketPlan | None = None,
) -> None:
    """Writes a PNG of three panels: sizes and buckets, efficiency over limits, filling of packs."""
    figure = _figure((16, 4.8))
    figure.set_layout_engine("constrained", w_pad=BETWEEN)
    left, middle, right = figure.subplots(1, 3)
    draw_sizes(left, histogram, plan, packings)
    draw_map(middle, shown, packings)
    draw_filling(right, *_fills(histogram, packings, plan))
    atomic.save_figure(path, figure, dpi=110)


def save_cost_picture(path: Path, choices: dict[str, list[SeveralChoice]]) -> None:
    """Writes a PNG of the cost of an epoch against the number of buckets, one line per name."""
    figure = _figure((7, 4.5))
    axes = figure.subplots()
    for (name, line), colour in zip(choices.items(), (NODES, *LINES), strict=False):
        costs = 100 * np.array([choice.cost for choice in line]) / line[0].cost
        number = np.arange(1, len(costs) + 1)
        axes.plot(number, costs, "o-", color=colour, label=name)
        at = knee(line)
        axes.plot(number[at], costs[at], "s", color=colour, markersize=11, fillstyle="none")
    axes.set(
        xlabel="buckets",
        ylabel="cost of an epoch, one bucket = 100%",
        title="What several buckets save (square: the last that saves 5%)",
    )
    _percents(axes)
    axes.set_xticks(range(1, 1 + max(len(line) for line in choices.values())))
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    atomic.save_figure(path, figure, dpi=110)


def _percents(axes: Axes) -> None:
    """Labels the cost axis with plain percentages up to the highest cost; the axis is logarithmic
    if costs fall below ``FALLS_FAR`` percent."""
    shown = np.concatenate([line.get_ydata() for line in axes.get_lines()])
    least, most = float(shown.min()), float(shown.max())
    if least < FALLS_FAR:
        axes.set_yscale("log")
    else:
        span = max(most - least, LEAST_SPAN)
        axes.set_ylim(max(0.0, most - (1 + ROOM) * span), most + ROOM * span)
    for place in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        place(lambda value, _: _share(value, most, least < FALLS_FAR))


def _share(value: float, most: float, log: bool) -> str:
    hidden = value > most + 1e-9 or (log and _first_digit(value) not in (1, 2, 5))
    return "" if hidden else f"{value:g}%"


def draw_sizes(
    axes: Axes, histogram: SizeHistogram, plan: BucketPlan | None, packings: Sequence[Packing]
) -> None:
    """Draws one dot per size, with a line at the largest graph of each bucket, or the limits of
    packs."""
    nodes, edges = histogram.sizes[:, 0], histogram.sizes[:, 1]
    order = np.argsort(histogram.counts)  # the frequent sizes on top
    dots = axes.scatter(
        nodes[order], edges[order], s=9, c=histogram.counts[order], cmap="viridis_r", norm="log"
    )
    shades = axes.figure.colorbar(dots, ax=axes, label="graphs of this size")
    few = histogram.counts.max() < 100  # few powers of ten are in the range
    shown = (1, 2, 5) if few else (1,)
    for place in (shades.ax.yaxis.set_major_formatter, shades.ax.yaxis.set_minor_formatter):
        place(lambda value, _: _count(value) if _first_digit(value) in shown else "")
    axes.set(xlabel="nodes of a graph", ylabel="edges of a graph")
    axes.set_title(
        f"{how_many(histogram.num_graphs, 'graph')} of {how_many(len(nodes), 'size')}", fontsize=10
    )
    capacities = () if plan is None else plan.capacities
    for number, capacity in enumerate(capacities):
        label = (
            f"bucket {number}: graphs to {how_many(capacity.max_graph_nodes, 'node')} "
            f"in batches of\n"
            f"{how_many(capacity.nodes, 'node')}, {how_many(capacity.edges, 'edge')}, "
            f"{how_many(capacity.graphs, 'graph')}"
        )
        colour = LINES[number % len(LINES)]
        axes.axvline(capacity.max_graph_nodes, color=colour, linewidth=1.5, label=label)
    for packing in packings if plan is None else ():
        limits = packing.limits[:2]
        near = bool((limits <= NEAR * histogram.maxima[:2]).all())
        label = f"limits of a pack: {how_many(limits[0], 'node')}, {how_many(limits[1], 'edge')}"
        drawn = limits if near else ([], [])
        axes.plot(*drawn, "P", color=MARK, label=label if near else f"{label}, beyond the axes")
    axes.legend(frameon=True, fontsize=7, loc="best")


def _count(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else ""


def _first_digit(value: float) -> float:
    """The leading digit, such as 5 for 500; a fraction if other digits follow."""
    return round(value / 10 ** math.floor(math.log10(value) + 1e-6), 6)


def draw_map(axes: Axes, shown: EfficiencyMap, packings: Sequence[Packing]) -> None:
    """Draws the harmonic mean of the efficiencies over limits, with the best one marked."""
    mesh = axes.pcolormesh(
        shown.edges, shown.nodes, 100 * shown.harmonic, cmap="cividis", shading="nearest"
    )
    axes.figure.colorbar(mesh, ax=axes, label="harmonic mean of the efficiencies, %")
    nodes, edges, value = shown.best
    axes.plot(edges, nodes, "o", color=MARK, fillstyle="none", markersize=12, markeredgewidth=2)
    for packing in packings:
        if packing.limits[0] <= shown.nodes[-1] and packing.limits[1] <= shown.edges[-1]:
            axes.plot(
                packing.limits[1], packing.limits[0], "P", color="white", markersize=9,
                markeredgecolor="black", markeredgewidth=0.8,
            )  # fmt: skip
    axes.set(xlabel="limit on edges", ylabel="limit on nodes")
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.locator_params(axis="y", integer=True)
    axes.set_title(f"limits of a pack: best ({nodes}, {edges}) with {value:.2%}", fontsize=10)


def draw_filling(axes: Axes, nodes: np.ndarray, edges: np.ndarray) -> None:
    """Draws how full the packs are, the fullest first."""
    for values, colour, name in ((nodes, NODES, "nodes"), (edges, EDGES, "edges")):
        falling = np.sort(values)[::-1]
        share = np.arange(1, len(falling) + 1) / len(falling)
        label = f"{name}: {values.mean():.2%} on average"
        axes.plot(100 * share, 100 * falling, color=colour, label=label)
    few = min(0.02, 2.0 / len(nodes))  # the last packs may be nearly empty and are not shown
    low = min(float(np.quantile(nodes, few)), float(np.quantile(edges, few)))
    axes.set(
        xlabel="packs, the fullest first, %",
        ylabel="real over physical rows, %",
        ylim=(max(0.0, 100 * np.floor(20 * low) / 20 - 1), 100.5),
    )
    axes.set_title(f"filling of {how_many(len(nodes), 'pack')}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower left")


def _fills(
    histogram: SizeHistogram, packings: Sequence[Packing], plan: BucketPlan | None
) -> tuple[np.ndarray, np.ndarray]:
    """The filling of nodes and of edges, ``[packs]`` each, of packings or of an epoch of a plan."""
    if plan is None:
        filled = [
            np.repeat(p.loads[:, :2] / np.maximum(1, p.limits[:2]), p.counts, axis=0)
            for p in packings
        ]
        both = np.concatenate(filled)
        return both[:, 0], both[:, 1]
    sizes = sizes_of(histogram)
    batches = Batcher(sizes, plan, exact=plan.batch_size is not None, shuffle=True).epoch(0)
    rows = np.array(
        [(plan.capacities[b.bucket].nodes, plan.capacities[b.bucket].edges) for b in batches]
    )
    real = np.array([sizes[b.ids, :2].sum(axis=0) for b in batches])
    both = real / np.maximum(1, rows)
    return both[:, 0], both[:, 1]


def _figure(size: tuple[float, float]) -> Figure:
    """A figure that draws without a display, whatever backend the user chose."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
