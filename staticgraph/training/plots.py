"""All plots: a training run, a comparison, a plan, a model of memory, a dry run, a schedule."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import numpy as np

from staticgraph.dryrun.launches import KINDS
from staticgraph.dryrun.report import PARTS, DryRun
from staticgraph.epochs.batcher import Batcher
from staticgraph.files import atomic
from staticgraph.memory.budget import MemoryBudget, scaled
from staticgraph.memory.model import MemoryModel
from staticgraph.outofcore.buffer.buffer import StateTime
from staticgraph.packing.pack import Packing
from staticgraph.plans.limits import EfficiencyMap, efficiency_map
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.plans.several import SeveralChoice, knee
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import is_left_out
from staticgraph.training.history import StepRecord, filled, full_steps
from staticgraph.training.report import TrainReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from staticgraph.training.versus.report import SideReport, VersusReport

# Okabe and Ito's palette, which is distinguishable with any colour vision.
BLUE, ORANGE, GREEN, RED, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
PADDING = "#DDDDDD"
COLORS = {"nodes": BLUE, "edges": ORANGE, "graphs": GREEN}
MEBI = 1 << 20
# The smoothed loss averages over this share of all steps.
SMOOTHING = 0.04
# The map's limits go up to this multiple of the largest graph, with this many steps per axis.
MAP_REACH, MAP_STEPS = 3.0, 36


def _new_figure(size: tuple[float, float]) -> Figure:
    """A figure that draws without a display, whatever backend the user chose."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


P = ParamSpec("P")


def _where_matplotlib_is(draw: Callable[Concatenate[Path, P], None]) -> Callable[..., bool]:
    """A function that draws a picture and returns True; without matplotlib, it says that the
    picture is left out, and returns False."""

    @wraps(draw)
    def save(path: Path, *args: P.args, **more: P.kwargs) -> bool:
        """Draws the picture, if that is possible."""
        drawn = not is_left_out(path, "matplotlib")
        if drawn:
            draw(path, *args, **more)
        return drawn

    return save


@contextmanager
def _figure(path: Path, size: tuple[float, float], title: str = "") -> Iterator[Figure]:
    """A figure that is written to a file at the end of the block."""
    figure = _new_figure(size)
    if title:
        figure.suptitle(title)
    yield figure
    atomic.save_figure(path, figure, dpi=120)


def svg_of(draw: Callable[[Axes], None], size: tuple[float, float]) -> str:
    """A plot as an ``<svg>`` element, without the XML header before it."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = _new_figure(size)
        draw(figure.add_subplot())
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _draw_shares(axes: Axes, rows: Sequence[tuple[str, str, float | None]]) -> None:
    """Draws bars of real rows on bars of padding.

    Args:
        axes: the axes to draw on.
        rows: label, color, and share from 0 to 1 or None where nothing ran, from top to bottom.
    """
    places = range(len(rows))
    whole = axes.barh(places, 1.0, color=PADDING)
    axes.barh(places, [share or 0.0 for *_, share in rows], color=[row[1] for row in rows])
    texts = ["not used" if share is None else f"{share:.1%}" for *_, share in rows]
    axes.bar_label(whole, texts, padding=3)
    axes.set_yticks(places, [label for label, *_ in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.18), xlabel="share of the rows that is real (grey: padding)")
    axes.xaxis.set_major_formatter("{x:.0%}")


# ---------------------------------------------------------------------- a training run


@_where_matplotlib_is
def save_picture(
    path: Path, report: TrainReport, steps: Sequence[StepRecord], capacities: Sequence[Capacity]
) -> None:
    """Draws loss and validation metric above, the filling of the buckets below.

    Args:
        path: the path of the picture.
        report: the report of the run.
        steps: all steps, at least one; losses that are not finite are not drawn.
        capacities: the capacities of the plan, by bucket.
    """
    config = report.config
    title = (
        f"{config['model']} on {report.data['name']}: {how_many(len(steps), 'step')} of "
        f"{how_many(config['batch_size'], 'graph')}, mode {report.runner.mode}"
    )
    with _figure(path, (11, 7.5), title) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
        draw_loss(figure.add_subplot(grid[0, :]), report, steps)
        draw_filling(figure.add_subplot(grid[1, 0]), steps, capacities)
        draw_spread(figure.add_subplot(grid[1, 1]), steps, capacities)


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


def draw_loss(axes: Axes, report: TrainReport, steps: Sequence[StepRecord]) -> None:
    """Draws the loss per step, its running mean, and validation loss and metric per epoch.

    Only finite values are drawn; for a run that diverged, those before the divergence.
    """
    pooled = pooled_losses(steps)
    places = np.flatnonzero(np.isfinite([step.loss for step in steps]))
    losses, numbers = pooled[places], places + 1
    axes.plot(numbers, losses, color=BLUE, alpha=0.4, label="training loss")
    width = min(max(1, round(SMOOTHING * len(steps))), len(losses))
    if width > 1:
        mean = np.convolve(losses, np.full(width, 1 / width), "valid")
        axes.plot(numbers[width - 1 :], mean, color=BLUE, label=f"mean of {width} batches")
    ends = np.cumsum([sum(s.epoch == e.epoch for s in steps) for e in report.epochs])
    for end in ends[:-1]:
        axes.axvline(end, color="grey", linewidth=0.8, linestyle=":")
    val_losses = [math.nan if e.val_loss is None else e.val_loss for e in report.epochs]
    if np.isfinite(val_losses).any():
        axes.plot(ends, val_losses, "s", color=BLUE, label="validation loss")
    axes.set(xlabel="step (dotted: the end of an epoch)", ylabel="loss")
    axes.locator_params(axis="x", integer=True)
    if len(places) < len(steps):
        axes.set_title(f"the losses of {how_many(len(steps) - len(places), 'step')} are not finite")
    axes.legend(loc="upper right")
    metrics = [math.nan if e.val_metric is None else e.val_metric for e in report.epochs]
    if np.isfinite(metrics).any():
        right = axes.twinx()
        right.plot(ends, metrics, "o-", color=RED)
        right.set_ylabel(f"validation {report.metric}", color=RED)


def draw_filling(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws the share of real nodes, edges and graphs of every bucket's full batches, and apart
    from them that of the last, partial batches of epochs."""
    full = full_steps(steps)
    partial = [step for step in steps if step.graphs < full[0].graphs]
    rows = [
        (
            f"bucket {bucket}: {getattr(capacity, name):,} {name}",
            color,
            filled([step for step in full if step.bucket == bucket], capacities, name),
        )
        for bucket, capacity in enumerate(capacities)
        for name, color in COLORS.items()
    ]
    if partial:
        rows += [
            (f"partial batches: {name}", COLORS[name], filled(partial, capacities, name))
            for name in ("nodes", "edges")
        ]
    _draw_shares(axes, rows)
    axes.set_title("filling of full batches")


def draw_spread(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws how the filling varies over full batches, without the last batch of an epoch."""
    full = full_steps(steps)
    shares = {
        name: [getattr(s, name) / getattr(capacities[s.bucket], name) for s in full]
        for name in ("nodes", "edges")
        if all(getattr(capacities[s.bucket], name) for s in full)  # graphs may have no edges
    }
    for name, values in shares.items():
        axes.hist(values, bins=20, color=COLORS[name], alpha=0.65, label=name)
    axes.set(xlabel="share of a batch's rows that is real", ylabel="batches")
    axes.xaxis.set_major_formatter("{x:.1%}")
    axes.locator_params(axis="x", nbins=5)
    axes.legend()
    axes.set_title(f"filling of each batch of {how_many(full[0].graphs, 'graph')}")


# ---------------------------------------------------------------------- a comparison


@_where_matplotlib_is
def save_versus_picture(path: Path, report: VersusReport) -> None:
    """Draws throughput and memory above, losses and filling below; at least one side ran."""
    sides = [side for side in report.sides if side.ran]
    title = f"{report.model} on {report.data}, batches of {report.batch_size}, {report.device}"
    with _figure(path, (11, 3.4 + 0.8 * len(sides)), title) as figure:
        (rates, memory), (losses, filling) = figure.subplots(2, 2)
        _draw_rates(rates, sides, report)
        _draw_memory(memory, sides)
        _draw_losses(losses, sides)
        rows = [
            (f"{side.name}: {name}", COLORS[name], getattr(side.filling, name))
            for side in sides
            if side.filling is not None
            for name in ("nodes", "edges")
        ]
        _draw_shares(filling, rows)
        filling.set_title("filling")


def _draw_rates(axes: Axes, sides: Sequence[SideReport], report: VersusReport) -> None:
    """Draws the median of graphs per second, with whiskers from the 10th to the 90th percentile."""
    rates = np.array([side.graphs_per_s or 0.0 for side in sides])
    low = np.array([side.graphs_per_s_low or side.graphs_per_s or 0.0 for side in sides])
    high = np.array([side.graphs_per_s_high or side.graphs_per_s or 0.0 for side in sides])
    colors = [GREEN if side.name == report.winner else BLUE for side in sides]
    whiskers = np.maximum(0, [rates - low, high - rates])
    bars = axes.barh([side.name for side in sides], rates, color=colors, xerr=whiskers, capsize=3)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_title(f"graphs per second, loading included; recommended: {report.winner}")


def _draw_memory(axes: Axes, sides: Sequence[SideReport]) -> None:
    """Draws the memory that is held, and on top of it what a step adds."""
    measured = [(side.name, side.memory) for side in sides if side.memory is not None]
    names = [name for name, _ in measured]
    held = [memory.held_bytes / MEBI for _, memory in measured]
    axes.barh(names, held, color=PADDING)
    added = [memory.step_bytes / MEBI for _, memory in measured]
    bars = axes.barh(names, added, left=held, color=PINK)
    axes.bar_label(bars, [human_bytes(memory.total_bytes) for _, memory in measured], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_title("memory, MiB: held (grey), and added by a step")


def _draw_losses(axes: Axes, sides: Sequence[SideReport]) -> None:
    """Draws the losses of the first turn, from the same weights over the same batches; each line is
    thinner than the one below it, so that all show."""
    for place, side in enumerate(sides):
        width = 1.0 + 1.5 * (len(sides) - 1 - place)
        steps = range(1, len(side.losses) + 1)
        axes.plot(steps, side.losses, marker=".", linewidth=width, label=side.name)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    compared = [side.equal for side in sides if side.equal is not None]
    verdict = "not compared" if not compared else "equal" if all(compared) else "NOT EQUAL"
    axes.set_title(f"losses of the first turn: {verdict}")


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


@_where_matplotlib_is
def save_plan_picture(
    path: Path,
    histogram: SizeHistogram,
    shown: EfficiencyMap,
    packings: Sequence[Packing],
    plan: BucketPlan | None = None,
) -> None:
    """Draws sizes and buckets, efficiency over limits, and the filling of packs."""
    with _figure(path, (16, 4.8)) as figure:
        left, middle, right = figure.subplots(1, 3)
        _draw_sizes(left, histogram, plan)
        _draw_map(middle, shown, packings)
        _draw_pack_filling(right, _fills(histogram, packings, plan))


@_where_matplotlib_is
def save_cost_picture(path: Path, name: str, choices: list[SeveralChoice]) -> None:
    """Draws the cost of an epoch against the number of buckets."""
    with _figure(path, (7, 4.5)) as figure:
        axes, last = figure.subplots(), knee(choices)
        costs = 100 * np.array([choice.cost for choice in choices]) / choices[0].cost
        axes.plot(range(1, len(costs) + 1), costs, "o-", label=name)
        axes.plot(last + 1, costs[last], "s", color=RED, markersize=11, fillstyle="none")
        axes.set(xlabel="buckets", ylabel="cost of an epoch, % of that of one bucket")
        axes.set_ylim(0, None)
        axes.set_title("What several buckets save (square: the last that saves 5%)")
        axes.locator_params(axis="x", integer=True)
        axes.legend()


def _draw_sizes(axes: Axes, histogram: SizeHistogram, plan: BucketPlan | None) -> None:
    """Draws one dot per size, with a line at the largest graph of each bucket."""
    order = np.argsort(histogram.counts)  # the frequent sizes on top
    nodes, edges = histogram.sizes[order, 0], histogram.sizes[order, 1]
    dots = axes.scatter(nodes, edges, s=9, c=histogram.counts[order], norm="log")
    axes.figure.colorbar(dots, ax=axes, label="graphs of this size")
    axes.set(xlabel="nodes of a graph", ylabel="edges of a graph")
    axes.set_title(f"{how_many(histogram.num_graphs, 'graph')} of {how_many(len(nodes), 'size')}")
    for number, capacity in enumerate(() if plan is None else plan.capacities):
        label = f"bucket {number}: {capacity.nodes:,} nodes, {capacity.edges:,} edges, "
        label += how_many(capacity.graphs, "graph")
        axes.axvline(capacity.max_graph_nodes, color=f"C{number + 1}", label=label)
    if plan is not None:
        axes.legend()


def _draw_map(axes: Axes, shown: EfficiencyMap, packings: Sequence[Packing]) -> None:
    """Draws the harmonic mean of the efficiencies over limits, with the best one marked."""
    mesh = axes.pcolormesh(shown.edges, shown.nodes, 100 * shown.harmonic, shading="nearest")
    axes.figure.colorbar(mesh, ax=axes, label="harmonic mean of the efficiencies, %")
    nodes, edges, value = shown.best
    axes.plot(edges, nodes, "o", color=RED, fillstyle="none", markersize=12)
    for packing in packings:
        if packing.limits[0] <= shown.nodes[-1] and packing.limits[1] <= shown.edges[-1]:
            axes.plot(packing.limits[1], packing.limits[0], "P", color="white", markersize=9)
    axes.set(xlabel="limit on edges", ylabel="limit on nodes")
    axes.set_title(f"limits of a pack: best ({nodes}, {edges}) with {value:.2%}")


def _draw_pack_filling(axes: Axes, fills: np.ndarray) -> None:
    """Draws how full the packs are, ``[packs, 2]``, the fullest first."""
    for values, name in zip(fills.T, ("nodes", "edges"), strict=True):
        share = np.arange(1, len(values) + 1) / len(values)
        label = f"{name}: {values.mean():.2%} on average"
        axes.plot(100 * share, 100 * np.sort(values)[::-1], color=COLORS[name], label=label)
    axes.set(xlabel="packs, the fullest first, %", ylabel="real over physical rows, %")
    axes.set_title(f"filling of {how_many(len(fills), 'pack')}")
    axes.legend(loc="lower left")


def _fills(
    histogram: SizeHistogram, packings: Sequence[Packing], plan: BucketPlan | None
) -> np.ndarray:
    """The filling of nodes and edges, ``[packs, 2]``, of packings or of an epoch of a plan."""
    if plan is None:
        filled = [
            np.repeat(p.loads[:, :2] / np.maximum(1, p.limits[:2]), p.counts, axis=0)
            for p in packings
        ]
        return np.concatenate(filled)
    sizes = sizes_of(histogram)
    batches = Batcher(sizes, plan, exact=plan.batch_size is not None, shuffle=True).epoch(0)
    rows = np.array(
        [(plan.capacities[b.bucket].nodes, plan.capacities[b.bucket].edges) for b in batches]
    )
    real = np.array([sizes[b.ids, :2].sum(axis=0) for b in batches])
    return real / np.maximum(1, rows)


# ---------------------------------------------------------------------- a model of memory


@_where_matplotlib_is
def save_memory_picture(
    path: Path, memory: MemoryModel, title: str, budget: MemoryBudget | None = None
) -> None:
    """Draws bytes over nodes with the fitted curve and the cap of a budget, and the error at each
    point of a memory model, of which it has at least one."""
    points = [*memory.points, *([memory.checked] if memory.checked else [])]
    last = points[-1].capacity
    colors = [GREEN] * len(memory.points) + [RED] * (memory.checked is not None)
    title = f"{title}: {memory.fit.form} form, measured by {memory.reader}"
    with _figure(path, (11, 5), title) as figure:
        curve, errors = figure.subplots(1, 2, width_ratios=(3, 2))
        line = [scaled(last, share) for share in np.linspace(0.0, 1.05, 200)]
        curve.plot(
            [c.nodes for c in line],
            [memory.predict(c) / MEBI for c in line],
            label=f"fitted, batches of like graphs, M = {last.max_graph_nodes}",
        )
        nodes = [p.capacity.nodes for p in points]
        held = memory.resident.before_step
        peaks = [(p.nbytes + held + memory.batch.of(p.capacity)) / MEBI for p in points]
        curve.scatter(nodes, peaks, color=colors, label="measured (red: held out)")
        fitted = [memory.predict(p.capacity) / MEBI for p in points]
        curve.scatter(nodes, fitted, color="black", marker="+", label="fitted, at these points")
        if budget is not None:
            cap = f"cap {human_bytes(budget.max_bytes)}"
            curve.axhline(budget.max_bytes / MEBI, color=PINK, linestyle="--", label=cap)
        curve.set(xlabel="nodes of the capacity", ylabel="peak of a step, MiB")
        curve.set_title("points off the curve have other edges, graphs or M")
        curve.legend()
        off = [100 * (memory.fit.predict(p.capacity) / p.nbytes - 1) for p in points]
        names = [f"{p.capacity.nodes:,}, {p.capacity.edges:,}" for p in points]
        bars = errors.barh(range(len(points)), off, color=colors)
        errors.bar_label(bars, [f"{error:+.2f}%" for error in off], padding=3)
        errors.set_yticks(range(len(points)), names)
        errors.invert_yaxis()
        errors.margins(x=0.4)
        errors.set(xlabel="fitted less measured, %", ylabel="nodes, edges")


# ---------------------------------------------------------------------- a dry run


@_where_matplotlib_is
def save_launches_picture(path: Path, report: DryRun) -> None:
    """Draws the launches of each run by kind, one panel per part of the step.

    Raises:
        ValueError: nothing was counted.
    """
    runs = [run for run in report.runs if run.count()]
    if not runs:
        raise ValueError("no run was counted, so there is nothing to draw")
    options = [report.autocast] if report.autocast else []
    options += ["with kernels"] if report.kernels else []
    names = [f"{run.mode}, bucket {run.bucket}, {run.phase}" for run in runs]
    title = f"{report.model} {', '.join(options)}: {report.label}"
    with _figure(path, (11, 1.6 + 0.5 * len(runs)), title) as figure:
        panels = figure.subplots(1, len(PARTS), sharex=True, sharey=True)
        for panel, part in zip(panels, PARTS, strict=True):
            left = np.zeros(len(runs), dtype=int)
            for kind in KINDS:
                counts = np.array([run.count(part, kind) for run in runs])
                panel.barh(names, counts, left=left, label=kind)
                left += counts
            for place, total in enumerate(left.tolist()):
                panel.text(total, place, f" {total}", va="center")
            panel.set(title=part, xlabel="launches")
            panel.margins(x=0.15)
        panels[0].invert_yaxis()
        panels[0].legend()


# ---------------------------------------------------------------------- a graph larger than memory


@_where_matplotlib_is
def save_schedule_picture(path: Path, times: Sequence[StateTime], num_partitions: int) -> None:
    """Draws resident partitions, reads and waits over time."""
    reads = [(state.began_s, partition) for state in times for partition in state.entered]
    with _figure(path, (9, 4.5)) as figure:
        axes = figure.subplots()
        for state in times:
            lasted_s = state.ended_s - state.began_s
            axes.barh(state.partitions, lasted_s, left=state.began_s, color=BLUE, alpha=0.35)
            axes.axvspan(state.asked_s, state.began_s, color=RED, alpha=0.6, linewidth=0)
        axes.plot(*zip(*reads, strict=True), ".", color=ORANGE)
        axes.set(xlabel="seconds (dots: reads, red: waits)", ylabel="partition")
        axes.set_ylim(-0.5, num_partitions - 0.5)
        axes.set_title(
            f"{how_many(len(times), 'state')}, {how_many(len(reads), 'partition')} read, waited "
            f"{sum(s.began_s - s.asked_s for s in times):.3f} s"
        )
