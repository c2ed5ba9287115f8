"""All plots: a training run, a comparison, a plan, and a model of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.files import atomic
from staticgraph.memory.budget import MemoryBudget, scaled
from staticgraph.memory.model import MemoryModel
from staticgraph.packing.pack import Packing
from staticgraph.plans.limits import EfficiencyMap, efficiency_map
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.plans.several import SeveralChoice, knee
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.training.history import StepRecord, full_steps
from staticgraph.training.report import TrainReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from staticgraph.training.versus.report import SideReport, VersusReport

# Okabe and Ito's palette, which is distinguishable with any colour vision.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, LIGHT_BLUE, GREY, PADDING = "#CC79A7", "#56B4E9", "#999999", "#DDDDDD"
COLORS = {"nodes": BLUE, "edges": ORANGE, "graphs": GREEN}
MEBI = 1 << 20
# The smoothed loss averages over this share of all steps.
SMOOTHING = 0.04
# The smallest span of a metric's axis, as a share of the largest value.
LEAST_SPAN = 0.2
# The length of the step axis relative to the run, with room for the label of the last metric.
LONGER = 1.07
# Losses within this share of each other are drawn as equal: the table has their differences.
ALIKE = 0.01
# With fewer steps than this, every step has a tick.
FEW = 8
# The map's limits go up to this multiple of the largest graph, with this many steps per axis.
MAP_REACH, MAP_STEPS = 3.0, 36
# The axis of costs spans at least this many percent, so that small savings look small. Below
# FALLS_FAR percent it is logarithmic, since a linear one would crowd the points.
LEAST_PERCENT, FALLS_FAR = 10.0, 10.0
# The margin above and below the points, as a share of that span.
ROOM = 0.06
LINES = (RED, ORANGE, GREEN, PINK, LIGHT_BLUE)
# The error, in percent, below which the label of a bar shows 0.00.
MEETS = 0.005
# Limits up to this multiple of the largest graph are drawn with the graphs; larger ones would leave
# the graphs a corner, and appear only in the legend.
NEAR = 1.5


def _figure(size: tuple[float, float], **layout: float) -> Figure:
    """A figure that draws without a display, whatever backend the user chose."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    if layout:
        figure.set_layout_engine("constrained", **layout)
    return figure


def _title(axes: Axes, text: str, **more: Any) -> None:
    axes.set_title(text, loc="left", fontsize=11, **more)


def _draw_share(axes: Axes, y: float, share: float, name: str, text: str, height: float) -> None:
    """Draws a bar of real rows on one of padding, with its text."""
    axes.barh(y, 1.0, color=PADDING, height=height)
    axes.barh(y, share, color=COLORS[name], height=height)
    inside = share > 0.12  # the bar is wide enough for its label
    color = "white" if inside and name == "nodes" else "black"
    axes.text(0.01 if inside else share + 0.01, y, text, va="center", color=color, fontsize=9)


def _share_axis(axes: Axes) -> None:
    axes.set(xlim=(0, 1), xlabel="share of the rows that is real (grey: padding)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")


# ---------------------------------------------------------------------- a training run


def save_picture(
    path: Path, report: TrainReport, steps: Sequence[StepRecord], capacities: Sequence[Capacity]
) -> None:
    """Writes a PNG: loss and validation metric above, filling of the buckets below.

    Args:
        path: the path of the PNG.
        report: the report of the run.
        steps: all steps, at least one; losses that are not finite are not drawn.
        capacities: the capacities of the plan, by bucket.
    """
    figure, config = _figure((11, 7.5)), report.config
    figure.suptitle(
        f"{config['model']} on {report.data['name']}: {how_many(len(steps), 'step')} of "
        f"{how_many(config['batch_size'], 'graph')}, mode {report.runner.mode}",
        fontsize=13,
    )
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    draw_loss(figure.add_subplot(grid[0, :]), report, steps, "learning")
    draw_filling(figure.add_subplot(grid[1, 0]), steps, capacities)
    draw_spread(figure.add_subplot(grid[1, 1]), steps, capacities)
    atomic.save_figure(path, figure, dpi=120)


def pooled_losses(steps: Sequence[StepRecord]) -> np.ndarray:
    """The loss at each step, ``[steps]``; that of a partial batch together with the batch before
    it, weighted by graphs, since the mean of five graphs would be a spike among means of hundreds.
    """
    losses = np.array([step.loss for step in steps], dtype=float)
    graphs = np.array([step.graphs for step in steps], dtype=float)
    pooled = losses.copy()
    for place in np.flatnonzero(graphs < graphs.max(initial=0)):
        if place and math.isfinite(losses[place - 1]):
            both = slice(place - 1, place + 1)
            pooled[place] = np.average(losses[both], weights=graphs[both])
    return pooled


def draw_loss(
    axes: Axes, report: TrainReport, steps: Sequence[StepRecord], title: str = ""
) -> None:
    """Draws the loss per step, its running mean, and validation loss and metric per epoch.

    Only finite values are drawn; for a run that diverged, those before the divergence.

    Args:
        axes: the axes to draw on.
        report: the report of the run.
        steps: all steps.
        title: the title, if the page has no heading for the plot.
    """
    every = pooled_losses(steps)
    shown = np.isfinite([step.loss for step in steps])
    losses, places = every[shown], np.flatnonzero(shown) + 1
    partial = len(full_steps(steps)) < len(steps)
    label = "training loss"
    width = max(1, round(SMOOTHING * len(every)))
    if width > 1:
        axes.plot(places, losses, color=BLUE, alpha=0.25, linewidth=0.8, label=label)
        graphs = np.array([step.graphs for step in steps])[shown]
        raw = np.array([step.loss for step in steps])[shown]
        losses, label = running_mean(raw, graphs, width), f"mean of {width} batches"
    axes.plot(places, losses, color=BLUE, linewidth=2, label=label)
    ends = np.cumsum([sum(s.epoch == e.epoch for s in steps) for e in report.epochs])
    for end in ends[:-1]:
        axes.axvline(end, color=GREY, linewidth=0.8, linestyle=":")
    notes = ["dotted: the end of an epoch"] if len(ends) > 1 else []
    notes += ["a partial batch is averaged with the batch before it"] if partial else []
    note = f" ({'; '.join(notes)})" if notes else ""
    axes.set(xlabel=f"step{note}", ylabel="loss", xlim=(0, len(every) * LONGER))
    axes.locator_params(axis="x", integer=True)
    lost = len(every) - int(shown.sum())
    missing = f"the losses of {how_many(lost, 'step')} are not finite" if lost else ""
    _title(axes, "; ".join(part for part in (title, missing) if part), pad=24)  # above the legend
    val_losses, metrics = (
        np.array([math.nan if value is None else value for value in values], dtype=float)
        for values in (
            [epoch.val_loss for epoch in report.epochs],
            [epoch.val_metric for epoch in report.epochs],
        )
    )
    bounds = [*np.percentile(every[shown], [0, 99.5])] if shown.any() else []
    bounds += [*val_losses[np.isfinite(val_losses)]]
    if bounds:
        space = 0.1 * (max(bounds) - min(bounds)) + 1e-12
        low = min(bounds) - space
        axes.set_ylim(max(0, low) if min(bounds) >= 0 else low, max(bounds) + space)
    if np.isfinite(val_losses).any():
        axes.plot(ends, val_losses, "s", color=BLUE, markersize=7, label="validation loss")
    handles, labels = axes.get_legend_handles_labels()
    if np.isfinite(metrics).any():
        handles.append(draw_metric(axes.twinx(), report.metric, ends, metrics))
        labels.append(f"validation {report.metric}")
    axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1), frameon=False,
        ncols=len(labels), borderaxespad=0.2, handlelength=1.5,
    )  # fmt: skip


def draw_metric(axes: Axes, name: str, ends: np.ndarray, metrics: np.ndarray) -> Line2D:
    """Draws the validation metric at the end of each epoch, with a label for the last; at least one
    value must be finite."""
    ends, metrics = ends[np.isfinite(metrics)], metrics[np.isfinite(metrics)]
    (line,) = axes.plot(ends, metrics, "o-", color=RED, linewidth=1.5, markersize=7)
    axes.annotate(
        f"{metrics[-1]:.3f}", (ends[-1], metrics[-1]), (8, 0), textcoords="offset points",
        va="center", color=RED,
    )  # fmt: skip
    axes.set_ylabel(f"validation {name}", color=RED)
    axes.margins(y=0.4)
    # Widened to a least span, so that small changes look small.
    low, high = axes.get_ylim()
    missing = max(0.0, LEAST_SPAN * float(np.abs(metrics).max()) - (high - low)) / 2
    low -= missing
    axes.set_ylim(max(0.0, low) if metrics.min() >= 0 else low, high + missing)
    return line


def draw_filling(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws the share of real nodes, edges and graphs of every bucket's full batches, and apart
    from them that of the last, partial batches of epochs."""
    full = full_steps(steps)
    partial = [step for step in steps if step.graphs < full[0].graphs]
    labels: list[str] = []
    for bucket, capacity in enumerate(capacities):
        for name in COLORS:
            limit = max(1, getattr(capacity, name))
            rows = [getattr(step, name) for step in full if step.bucket == bucket]
            share = float(np.mean(rows)) / limit if rows else 0.0
            text = f"{100 * share:.1f}%" if rows else "not used"
            _draw_share(axes, -len(labels), share, name, text, 0.8)
            labels.append(f"bucket {bucket}: {limit:,} {name}")
    if partial:
        counts = sorted({step.graphs for step in partial})
        which = f"last batch, {counts[0]:,} of {full[0].graphs:,} graphs"
        which = which if len(counts) == 1 else "partial batches"
        for name in ("nodes", "edges"):
            limits = [max(1, getattr(capacities[step.bucket], name)) for step in partial]
            rows = [getattr(step, name) for step in partial]
            share = float(np.sum(rows) / np.sum(limits))
            _draw_share(axes, -len(labels) - 0.4, share, name, f"{100 * share:.1f}%", 0.5)
            labels.append(f"{which}: {name}")
    rest = len(labels) - 2 if partial else len(labels)
    axes.set_yticks([-place - 0.4 * (place >= rest) for place in range(len(labels))], labels)
    _share_axis(axes)
    _title(axes, f"filling of full{' and partial' if partial else ''} batches")


def draw_spread(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws how the filling varies over full batches, without the last batch of an epoch."""
    full = full_steps(steps)
    shares = {
        name: np.array([getattr(s, name) / getattr(capacities[s.bucket], name) for s in full])
        for name in ("nodes", "edges")
        if all(getattr(capacities[s.bucket], name) for s in full)  # graphs may have no edges
    }
    low = min(float(values.min()) for values in shares.values())
    bins = np.linspace(min(low, 0.98), 1.0, 41).tolist()
    for name, values in shares.items():
        axes.hist(values, bins=bins, color=COLORS[name], alpha=0.65, label=name)
    axes.set(xlabel="share of a batch's rows that is real", ylabel="batches")
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.1f}%")
    axes.legend(frameon=False, loc="upper left")
    _title(axes, f"filling of each batch of {how_many(full[0].graphs, 'graph')}")


def running_mean(values: np.ndarray, weights: np.ndarray, width: int) -> np.ndarray:
    """The weighted mean of each value and the ``width - 1`` before it; of fewer at the start."""
    weighted = np.cumsum(np.insert(values * weights, 0, 0.0))
    weight = np.cumsum(np.insert(weights, 0, 0))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - width)
    return (weighted[end] - weighted[start]) / (weight[end] - weight[start])


# ---------------------------------------------------------------------- a comparison


def save_versus_picture(path: Path, report: VersusReport) -> None:
    """Writes a PNG: throughput and memory above, losses and filling below.

    Args:
        path: the path of the PNG.
        report: the report of a comparison in which at least one side ran.
    """
    sides = [side for side in report.sides if side.ran]
    figure = _figure((11, 3.4 + 0.8 * len(sides)))
    figure.suptitle(
        f"{report.model} on {report.data}, batches of {report.batch_size}, {report.device}",
        fontsize=13,
    )
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    draw_rates(figure.add_subplot(grid[0, 0]), sides, report)
    draw_memory(figure.add_subplot(grid[0, 1]), sides)
    draw_losses(figure.add_subplot(grid[1, 0]), sides, report)
    draw_side_filling(figure.add_subplot(grid[1, 1]), sides)
    atomic.save_figure(path, figure, dpi=120)


def draw_rates(axes: Axes, sides: Sequence[SideReport], report: VersusReport) -> None:
    """Draws the median of graphs per second, with whiskers from the 10th to the 90th percentile."""
    rates = np.array([side.graphs_per_s or 0.0 for side in sides])
    low = np.array([side.graphs_per_s_low or side.graphs_per_s or 0.0 for side in sides])
    high = np.array([side.graphs_per_s_high or side.graphs_per_s or 0.0 for side in sides])
    whiskers = np.maximum(0, [rates - low, high - rates])
    colors = [
        GREY if side.name.startswith("PyG") else BLUE if side.name == report.winner else LIGHT_BLUE
        for side in sides
    ]
    style = {"ecolor": "black", "elinewidth": 1, "capsize": 3}
    axes.barh(range(len(sides)), rates, color=colors, xerr=whiskers, error_kw=style)
    most = float((rates + whiskers[1]).max())
    for place, side in enumerate(sides):
        times = "" if side.name == report.compared_with else f", {side.ratio:.2f} times"
        x = rates[place] + whiskers[1][place] + 0.02 * most
        axes.text(x, place, f"{rates[place]:,.0f}{times}", va="center")
    _name_places(axes, sides)
    axes.set_xlim(0, 1.5 * most)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(
        "training graphs per second, loading included (more is better)\n"
        "whiskers: 10th to 90th percentile; dark: recommended"
    )
    _title(axes, f"throughput, and times {report.compared_with}")


def draw_memory(axes: Axes, sides: Sequence[SideReport]) -> None:
    """Draws the memory that is held, and on top of it what a step adds."""
    held = [0.0 if s.memory is None else s.memory.held_bytes / MEBI for s in sides]
    added = [0.0 if s.memory is None else s.memory.step_bytes / MEBI for s in sides]
    axes.barh(range(len(sides)), held, color="#BBBBBB")
    axes.barh(range(len(sides)), added, left=held, color=PINK)
    most = max(1e-9, *(h + a for h, a in zip(held, added, strict=True)))
    for place, side in enumerate(sides):
        if side.memory is not None:
            text = human_bytes(side.memory.total_bytes)
            axes.text(held[place] + added[place] + 0.02 * most, place, text, va="center")
    _name_places(axes, sides)
    axes.set_xlim(0, 1.3 * most)
    axes.set_xlabel("MiB at the peak of a training step (less is better)")
    _title(axes, "memory: held (grey), and added by a step")


def draw_losses(axes: Axes, sides: Sequence[SideReport], report: VersusReport) -> None:
    """Draws the losses of the first turn, from the same weights over the same batches; each line is
    thinner than the one below it, so that all show."""
    colors = (GREY, LIGHT_BLUE, BLUE, ORANGE, GREEN, RED, PINK)
    for place, side in enumerate(sides):
        width = 1.0 + 1.5 * (len(sides) - 1 - place)
        axes.plot(
            range(1, len(side.losses) + 1), side.losses, label=side.name,
            color=colors[place % len(colors)], linewidth=width, markersize=4.0 + 2 * width,
            marker="o" if len(side.losses) == 1 else None,
        )  # fmt: skip
    axes.set(xlabel="step", ylabel="loss")
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    steps = max(1, *(len(side.losses) for side in sides)) if sides else 1
    axes.set_xlim(0.5, steps + 0.5)
    if steps < FEW:
        axes.set_xticks(range(1, steps + 1))
    else:
        axes.locator_params(axis="x", integer=True)
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    if high - low < ALIKE * abs(middle):
        axes.set_ylim(middle - 0.1 * abs(middle), middle + 0.1 * abs(middle))
    axes.legend(frameon=False, fontsize=9)
    compared = [side.equal for side in sides if side.equal is not None]
    verdict = "random numbers are drawn, so not compared" if report.random else "not compared"
    if compared:
        verdict = "equal" if all(compared) else "NOT EQUAL"
    _title(axes, f"losses of the first turn: {verdict}")


def draw_side_filling(axes: Axes, sides: Sequence[SideReport]) -> None:
    """Draws the share of real nodes and edges; the rest is padding."""
    for place, side in enumerate(sides):
        if side.filling is None:
            continue
        for offset, share, name in (
            (-0.2, side.filling.nodes, "nodes"),
            (0.2, side.filling.edges, "edges"),
        ):
            text = f"{100 * share:.1f}% of {name}"
            _draw_share(axes, place + offset, share, name, text, 0.36)
    _name_places(axes, sides)
    _share_axis(axes)
    _title(axes, "filling")


def _name_places(axes: Axes, sides: Sequence[SideReport]) -> None:
    axes.set_yticks(range(len(sides)), [side.name for side in sides])
    axes.invert_yaxis()


# ---------------------------------------------------------------------- a plan


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
    figure = _figure((16, 4.8), w_pad=0.12)
    left, middle, right = figure.subplots(1, 3)
    draw_sizes(left, histogram, plan, packings)
    draw_map(middle, shown, packings)
    draw_pack_filling(right, *_fills(histogram, packings, plan))
    atomic.save_figure(path, figure, dpi=110)


def save_cost_picture(path: Path, choices: dict[str, list[SeveralChoice]]) -> None:
    """Writes a PNG of the cost of an epoch against the number of buckets, one line per name."""
    figure = _figure((7, 4.5))
    axes = figure.subplots()
    for (name, line), colour in zip(choices.items(), (BLUE, *LINES), strict=False):
        costs = 100 * np.array([choice.cost for choice in line]) / line[0].cost
        number = np.arange(1, len(costs) + 1)
        axes.plot(number, costs, "o-", color=colour, label=name)
        last = knee(line)
        axes.plot(number[last], costs[last], "s", color=colour, markersize=11, fillstyle="none")
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
        span = max(most - least, LEAST_PERCENT)
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
        axes.plot(*drawn, "P", color=RED, label=label if near else f"{label}, beyond the axes")
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
    axes.plot(edges, nodes, "o", color=RED, fillstyle="none", markersize=12, markeredgewidth=2)
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


def draw_pack_filling(axes: Axes, nodes: np.ndarray, edges: np.ndarray) -> None:
    """Draws how full the packs are, the fullest first."""
    for values, colour, name in ((nodes, BLUE, "nodes"), (edges, ORANGE, "edges")):
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


# ---------------------------------------------------------------------- a model of memory


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
    figure = _figure((11, 5))
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
    peaks = [memory.predict(c) / MEBI for c in line]
    axes.plot([c.nodes for c in line], peaks, color=BLUE, label=label)
    around = memory.resident.before_step
    for points, color, marker, label in (
        (memory.points, GREEN, "o", "measured"),
        ((memory.checked,) if memory.checked else (), RED, "D", "measured, held out"),
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
        axes.axhline(budget.max_bytes / MEBI, color=PINK, linestyle="--")
        axes.annotate(
            f"cap {human_bytes(budget.max_bytes)}",
            (0.99, budget.max_bytes / MEBI),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=PINK,
        )
    axes.set(xlabel="nodes of the capacity", ylabel="peak of a step, MiB", xlim=(0, None))
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
    axes.set_title("points off the curve have other edges, graphs or M", fontsize=10)
    axes.legend(loc="upper left")


def draw_errors(axes: Axes, memory: MemoryModel) -> None:
    """Draws the fitted minus the measured bytes of each point, in percent of the measured bytes
    that the step adds."""
    points = [*memory.points, *([memory.checked] if memory.checked else [])]
    errors = [round(100 * (memory.fit.predict(p.capacity) / p.nbytes - 1), 4) + 0.0 for p in points]
    colors = [GREEN] * len(memory.points) + [RED]
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
