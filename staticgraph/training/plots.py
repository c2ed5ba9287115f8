"""Pictures: of a training run, a comparison, a plan, a model of memory, a dry run, a schedule.

A picture is a function that draws a figure of panels, and :func:`save_picture` writes it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from staticgraph.dryrun.report import KINDS, PARTS, DryRun
from staticgraph.files import atomic
from staticgraph.memory.budget import MemoryBudget, scaled
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.packing.packing_result import Packing
from staticgraph.plans.limits import EfficiencyMap
from staticgraph.plans.plan import BucketPlan
from staticgraph.plans.several import SeveralChoice, knee
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import is_left_out
from staticgraph.training.report import StepRecord, TrainReport, filled, full_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from staticgraph.outofcore.sampling.buffer import StateTime
    from staticgraph.training.versus.report import VersusReport

# Okabe and Ito's palette, which is distinguishable with any colour vision.
BLUE, ORANGE, GREEN, RED, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
PADDING = "#DDDDDD"
COLORS = {"nodes": BLUE, "edges": ORANGE, "graphs": GREEN}
MEBI = 1 << 20
# The smoothed loss averages over this share of all steps.
SMOOTHING = 0.04


def save_picture(path: Path, draw: Callable[..., Figure], *shown: Any) -> bool:
    """Writes the figure that ``draw`` returns for what is shown; without matplotlib it says that
    the picture is left out, and returns False."""
    if is_left_out(path, "matplotlib"):
        return False
    atomic.save_figure(path, draw(*shown), dpi=120)
    return True


def panels(
    size: tuple[float, float], title: str, mosaic: str = "A", **more: Any
) -> tuple[Figure, list[Axes]]:
    """A figure without a display, whatever backend the user chose, and its axes.

    Args:
        size: width and height in inches.
        title: above all panels; none if it is empty.
        mosaic: a letter per panel, as for matplotlib's ``subplot_mosaic``.
        **more: its further arguments.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    return figure, [*figure.subplot_mosaic(mosaic, **more).values()]


def svg_of(figure: Figure) -> str:
    """A figure as an ``<svg>`` element with searchable text, without the XML header before it."""
    import matplotlib as mpl

    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def draw_bars(
    axes: Axes, names: Sequence[str], values: Any, texts: Sequence[str], color: Any, **more: Any
) -> None:
    """Draws horizontal bars from top to bottom, each with its name before and a text behind it."""
    places = range(len(names))
    axes.bar_label(axes.barh(places, values, color=color, **more), texts, padding=3)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.margins(x=0.25)


# ---------------------------------------------------------------------- a training run


def draw_run(
    report: TrainReport, steps: Sequence[StepRecord], capacities: Sequence[Capacity]
) -> Figure:
    """Draws loss and validation metric above, the filling of the buckets below.

    Args:
        report: the report of the run.
        steps: all steps, at least one; losses that are not finite are not drawn.
        capacities: the capacities of the plan, by bucket.
    """
    config = report.config
    title = (
        f"{config['model']} on {report.data['name']}: {how_many(len(steps), 'step')} of "
        f"{how_many(config['batch_size'], 'graph')}, mode {report.runner.mode}"
    )
    figure, (above, below) = panels((11, 7.5), title, "L;F", height_ratios=(3, 2))
    draw_loss(above, report, steps)
    draw_filling(below, steps, capacities)
    return figure


def draw_loss(axes: Axes, report: TrainReport, steps: Sequence[StepRecord]) -> None:
    """Draws the loss per step, its running mean, and validation loss and metric per epoch.

    Only finite values are drawn; for a run that diverged, those before the divergence. Partial
    batches are left out: the mean of five graphs would be a spike among means of hundreds.
    """
    losses, graphs = np.array([(step.loss, step.graphs) for step in steps], float).T
    finite = np.isfinite(losses)
    places = np.flatnonzero(finite & (graphs == graphs.max()))
    losses, numbers = losses[places], places + 1
    axes.plot(numbers, losses, color=BLUE, alpha=0.4, label="training loss")
    width = min(max(1, round(SMOOTHING * len(steps))), len(losses))
    if width > 1:
        mean = np.convolve(losses, np.full(width, 1 / width), "valid")
        axes.plot(numbers[width - 1 :], mean, color=BLUE, label=f"mean of {width} batches")
    ends = np.cumsum([sum(s.epoch == e.epoch for s in steps) for e in report.epochs])
    for end in ends[:-1]:
        axes.axvline(end, color="grey", linewidth=0.8, linestyle=":")
    validated = np.array([(e.val_loss, e.val_metric) for e in report.epochs], float).reshape(-1, 2)
    some_loss, some_metric = (bool(np.isfinite(column).any()) for column in validated.T)
    if some_loss:
        axes.plot(ends, validated[:, 0], "s", color=BLUE, label="validation loss")
    axes.set(xlabel="step (dotted: the end of an epoch)", ylabel="loss")
    axes.locator_params(axis="x", integer=True)
    if not finite.all():
        axes.set_title(f"the losses of {how_many((~finite).sum(), 'step')} are not finite")
    axes.legend(loc="upper right")
    if some_metric:
        right = axes.twinx()
        right.plot(ends, validated[:, 1], "o-", color=RED)
        right.set_ylabel(f"validation {report.metric}", color=RED)


def draw_filling(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws the share of real nodes, edges and graphs of every bucket's full batches: colored bars
    on grey ones."""
    full = full_steps(steps)
    rows = [(bucket, name) for bucket in range(len(capacities)) for name in COLORS]
    shares = [
        filled([step for step in full if step.bucket == bucket], capacities, name)
        for bucket, name in rows
    ]
    names = [
        f"bucket {bucket}: {getattr(capacities[bucket], name):,} {name}" for bucket, name in rows
    ]
    texts = ["not used" if share is None else f"{share:.1%}" for share in shares]
    draw_bars(axes, names, [1.0] * len(rows), texts, PADDING)
    colors = [COLORS[name] for _, name in rows]
    axes.barh(range(len(rows)), [share or 0.0 for share in shares], color=colors)
    axes.set(xlim=(0, 1.18), xlabel="share of the rows that is real (grey: padding)")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_title("filling of full batches")


# ---------------------------------------------------------------------- a model of memory


def draw_memory(memory: MemoryModel, title: str, budget: MemoryBudget | None = None) -> Figure:
    """Draws bytes over nodes: the fitted curve, the points of a memory model, of which it has at
    least one, and the cap of a budget."""
    title = f"{title}: {memory.fit.form} form, measured by {memory.reader}"
    figure, (axes,) = panels((8, 5), title)
    points = [*memory.points, *([memory.checked] if memory.checked else [])]
    colors = [GREEN] * len(memory.points) + [RED] * (memory.checked is not None)
    last = points[-1].capacity
    line = [scaled(last, share) for share in np.linspace(0.0, 1.05, 200)]
    fitted = [memory.predict(c) / MEBI for c in line]
    label = f"fitted, batches of like graphs, M = {last.max_graph_nodes}"
    axes.plot([c.nodes for c in line], fitted, label=label)
    nodes, held = [p.capacity.nodes for p in points], memory.resident.before_step
    peaks = [(p.nbytes + held + memory.batch.of(p.capacity)) / MEBI for p in points]
    axes.scatter(nodes, peaks, color=colors, label="measured (red: held out)")
    if budget is not None:
        cap = f"cap {human_bytes(budget.max_bytes)}"
        axes.axhline(budget.max_bytes / MEBI, color=PINK, linestyle="--", label=cap)
    axes.set(xlabel="nodes of the capacity", ylabel="peak of a step, MiB")
    axes.set_title("points off the curve have other edges, graphs or M")
    axes.legend(loc="upper left")
    return figure


# ---------------------------------------------------------------------- a dry run


def draw_launches(report: DryRun) -> Figure:
    """Draws the launches of each part of each run: a bar of kinds one behind another.

    Raises:
        ValueError: nothing was counted.
    """
    bars = [(run, part) for run in report.runs if run.count() for part in PARTS]
    if not bars:
        raise ValueError("no run was counted, so there is nothing to draw")
    names = [f"{run.mode}, bucket {run.bucket}, {run.phase}: {part}" for run, part in bars]
    options = [report.autocast] if report.autocast else []
    options += ["with kernels"] if report.kernels else []
    title = f"{report.model} {', '.join(options)}: {report.label}"
    figure, (axes,) = panels((9, 1.6 + 0.35 * len(bars)), title)
    left = np.zeros(len(bars), dtype=int)
    for kind in KINDS:
        counts = np.array([run.count(part, kind) for run, part in bars])
        axes.barh(names, counts, left=left, label=kind)
        left += counts
    for place, total in enumerate(left.tolist()):
        axes.text(total, place, f" {total}", va="center")
    axes.set(xlabel="launches")
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    return figure


# ---------------------------------------------------------------------- a graph larger than memory


def draw_schedule(times: Sequence[StateTime], num_partitions: int) -> Figure:
    """Draws a bar per resident partition, a dot per read and a stripe per wait, over time."""
    figure, (axes,) = panels((9, 4.5), "")
    reads = [(state.began_s, partition) for state in times for partition in state.entered]
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
    return figure


# ---------------------------------------------------------------------- a comparison


def draw_versus(report: VersusReport) -> Figure:
    """Draws medians of throughput with whiskers from the 10th to the 90th percentile, and losses of
    the first turn, from the same weights over the same batches; at least one side ran.

    Each line of losses is thinner than the one below it, so that all show."""
    sides = [side for side in report.sides if side.ran]
    title = f"{report.model} on {report.data}, batches of {report.batch_size}, {report.device}"
    figure, (left, right) = panels((11, 3 + 0.4 * len(sides)), title, "RL")
    rates, low, high = np.array(
        [(side.graphs_per_s, side.graphs_per_s_low, side.graphs_per_s_high) for side in sides]
    ).T
    draw_bars(
        left, [side.name for side in sides], rates, [f"{rate:,.0f}" for rate in rates],
        [GREEN if side.name == report.winner else BLUE for side in sides],
        xerr=np.maximum(0, [rates - low, high - rates]), capsize=3,
    )  # fmt: skip
    left.set_title(f"graphs per second, loading included; recommended: {report.winner}")
    for place, side in enumerate(sides):
        steps, width = range(1, len(side.losses) + 1), 1.0 + 1.5 * (len(sides) - 1 - place)
        right.plot(steps, side.losses, ".-", linewidth=width, label=side.name)
    low, high = right.get_ylim()
    least = 0.01 * max(abs(low), abs(high))  # rounding is no difference to look at
    right.set(xlabel="step", ylabel="loss", ylim=(min(low, high - least), max(high, low + least)))
    right.legend(loc="upper right")
    right.set_title("losses of the first turn")
    return figure


# ---------------------------------------------------------------------- a plan


def draw_plan(
    histogram: SizeHistogram,
    limits: EfficiencyMap,
    result: Packing | BucketPlan,
    filling: Any = None,
) -> Figure:
    """Draws one dot per size, with a line at the largest graph of each bucket; the harmonic mean of
    the efficiencies over limits, with the best one marked; and how full the packs are, the fullest
    first: ``filling`` is that of each batch of a plan, ``[packs, 2]``."""
    figure, (sizes, over_limits, packs) = panels((16, 4.8), "", "SMF")
    order = np.argsort(histogram.counts)  # the frequent sizes on top
    nodes, edges = histogram.sizes[order, 0], histogram.sizes[order, 1]
    dots = sizes.scatter(nodes, edges, s=9, c=histogram.counts[order], norm="log")
    figure.colorbar(dots, ax=sizes, label="graphs of this size")
    sizes.set(xlabel="nodes of a graph", ylabel="edges of a graph")
    sizes.set_title(f"{how_many(histogram.num_graphs, 'graph')} of {how_many(len(nodes), 'size')}")
    mesh = over_limits.pcolormesh(
        limits.edges, limits.nodes, 100 * limits.harmonic, shading="nearest"
    )
    figure.colorbar(mesh, ax=over_limits, label="harmonic mean of the efficiencies, %")
    most_nodes, most_edges, best = limits.best
    over_limits.plot(most_edges, most_nodes, "o", color=RED, fillstyle="none", markersize=12)
    over_limits.set(xlabel="limit on edges", ylabel="limit on nodes")
    over_limits.set_title(f"limits of a pack: best ({most_nodes}, {most_edges}) with {best:.2%}")
    if isinstance(result, Packing):
        most_nodes, most_edges = result.limits[:2]
        if most_nodes <= limits.nodes[-1] and most_edges <= limits.edges[-1]:
            over_limits.plot(most_edges, most_nodes, "P", color="white", markersize=9)
        shares = result.loads[:, :2] / np.maximum(1, result.limits[:2])
        filling = np.repeat(shares, result.counts, 0)
    else:
        for number, capacity in enumerate(result.capacities):
            label = f"bucket {number}: {capacity.nodes:,} nodes, {capacity.edges:,} edges, "
            label += how_many(capacity.graphs, "graph")
            sizes.axvline(capacity.max_graph_nodes, color=f"C{number + 1}", label=label)
        sizes.legend(loc="upper left")
    share = 100 * np.arange(1, len(filling) + 1) / len(filling)
    for values, name in zip(filling.T, ("nodes", "edges"), strict=True):
        label = f"{name}: {values.mean():.2%} on average"
        packs.plot(share, 100 * np.sort(values)[::-1], color=COLORS[name], label=label)
    packs.set(xlabel="packs, the fullest first, %", ylabel="real over physical rows, %")
    packs.set_title(f"filling of {how_many(len(filling), 'pack')}")
    packs.legend(loc="lower left")
    return figure


def draw_costs(name: str, choices: list[SeveralChoice]) -> Figure:
    """Draws the cost of an epoch against the number of buckets, with a square at its knee."""
    figure, (axes,) = panels((7, 4.5), "")
    last, costs = knee(choices), [100 * each.cost / choices[0].cost for each in choices]
    axes.plot(range(1, len(costs) + 1), costs, "o-", label=name)
    axes.plot(last + 1, costs[last], "s", color=RED, markersize=11, fillstyle="none")
    axes.set(xlabel="buckets", ylabel="cost of an epoch, % of that of one bucket")
    axes.set_ylim(0, None)
    axes.set_title("What several buckets save (square: the last that saves 5%)")
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="lower left")
    return figure
