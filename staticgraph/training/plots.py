"""Plots of a run: loss and metric over the steps, and how well the fixed shapes are filled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from staticgraph.files import atomic
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many
from staticgraph.training.history import StepRecord
from staticgraph.training.report import TrainReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Okabe and Ito's palette, which is distinguishable with any colour vision.
NODES, EDGES, GRAPHS = "#0072B2", "#E69F00", "#009E73"
LOSS, METRIC, PADDING = "#0072B2", "#D55E00", "#DDDDDD"
LOSS_LABEL = "training loss per batch"
# The smoothed loss averages over this share of all steps.
SMOOTHING = 0.04
# The smallest span of a metric's axis, as a share of the largest value.
LEAST_SPAN = 0.2
# The length of the step axis relative to the run, with room for the label of the last metric.
LONGER = 1.07


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user chose
    config = report.config
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
    every = np.array([step.loss for step in steps])
    shown = np.isfinite(every)
    losses, number = every[shown], np.flatnonzero(shown) + 1
    width = max(1, round(SMOOTHING * len(every)))
    if width > 1:
        axes.plot(number, losses, color=LOSS, alpha=0.25, linewidth=0.8, label=LOSS_LABEL)
        graphs = np.array([step.graphs for step in steps])[shown]
        smooth, label = running_mean(losses, graphs, width), f"mean of {width} batches"
    else:
        smooth, label = losses, LOSS_LABEL
    axes.plot(number, smooth, color=LOSS, linewidth=2, label=label)
    ends = np.cumsum([sum(s.epoch == e.epoch for s in steps) for e in report.epochs])
    for end in ends[:-1]:
        axes.axvline(end, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", ylabel="loss", xlim=(0, len(every) * LONGER))
    if len(ends) > 1:
        axes.set_xlabel("step (dotted: the end of an epoch)")
    axes.locator_params(axis="x", integer=True)
    lost = len(every) - len(losses)
    missing = f"the losses of {how_many(lost, 'step')} are not finite" if lost else ""
    words = "; ".join(part for part in (title, missing) if part)
    axes.set_title(words, loc="left", fontsize=11, pad=24)  # the legend is below it
    val_losses = np.array([_number(epoch.val_loss) for epoch in report.epochs])
    bounds = [*np.percentile(losses, [0, 99.5])] if len(losses) else []
    bounds += [*val_losses[np.isfinite(val_losses)]]
    if bounds:
        space = 0.1 * (max(bounds) - min(bounds)) + 1e-12
        low = min(bounds) - space
        axes.set_ylim(max(0, low) if min(bounds) >= 0 else low, max(bounds) + space)
    metrics = np.array([_number(epoch.val_metric) for epoch in report.epochs])
    if np.isfinite(val_losses).any():
        axes.plot(ends, val_losses, "s", color=LOSS, markersize=7, label="validation loss")
    handles, labels = axes.get_legend_handles_labels()
    if np.isfinite(metrics).any():
        handles.append(draw_metric(axes.twinx(), report.metric, ends, metrics))
        labels.append(f"validation {report.metric}")
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        frameon=False,
        ncols=len(labels),
        borderaxespad=0.2,
        handlelength=1.5,
    )


def draw_metric(axes: Axes, name: str, ends: np.ndarray, metrics: np.ndarray) -> Line2D:
    """Draws the validation metric at the end of each epoch, with a label for the last; at least one
    value must be finite."""
    ends, metrics = ends[np.isfinite(metrics)], metrics[np.isfinite(metrics)]
    (line,) = axes.plot(ends, metrics, "o-", color=METRIC, linewidth=1.5, markersize=7)
    axes.annotate(
        f"{metrics[-1]:.3f}",
        (ends[-1], metrics[-1]),
        (8, 0),
        textcoords="offset points",
        va="center",
        color=METRIC,
    )
    axes.set_ylabel(f"validation {name}", color=METRIC)
    axes.margins(y=0.4)
    _no_narrower(axes, LEAST_SPAN * float(np.abs(metrics).max()))
    return line


def _no_narrower(axes: Axes, span: float) -> None:
    """Widens the y axis to at least this span, so that small changes look small."""
    low, high = axes.get_ylim()
    missing = max(0.0, span - (high - low)) / 2
    axes.set_ylim(low - missing, high + missing)
    least = min(float(np.min(line.get_ydata())) for line in axes.get_lines())
    if least >= 0:
        axes.set_ylim(bottom=max(0.0, low - missing))


def draw_filling(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws the share of real nodes, edges and graphs for every bucket."""
    labels: list[str] = []
    for bucket, capacity in enumerate(capacities):
        mine = [step for step in steps if step.bucket == bucket]
        for name, color, limit in _components(capacity):
            share = float(np.mean([getattr(step, name) for step in mine])) / limit if mine else 0.0
            y = -len(labels)
            axes.barh(y, 1.0, color=PADDING, height=0.8)
            axes.barh(y, share, color=color, height=0.8)
            text = f"{100 * share:.1f}%" if mine else "not used"
            inside = mine and share > 0.12  # the bar is wide enough for its label
            x = 0.01 if inside else share + 0.01
            readable = "white" if inside and color == NODES else "black"
            axes.text(x, y, text, va="center", color=readable, fontsize=10)
            labels.append(f"bucket {bucket}: {limit:,} {name}")
    axes.set_yticks([-number for number in range(len(labels))], labels)
    axes.set(xlim=(0, 1), xlabel="share of the rows that is real (grey: padding)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.set_title("filling of the fixed shapes, mean of all batches", loc="left", fontsize=11)


def draw_spread(axes: Axes, steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> None:
    """Draws how the filling varies over full batches, without the last batch of an epoch."""
    most = max(step.graphs for step in steps)
    full = [step for step in steps if step.graphs == most]
    shares = {
        name: np.array([getattr(s, name) / getattr(capacities[s.bucket], name) for s in full])
        for name in ("nodes", "edges")
        if all(getattr(capacities[s.bucket], name) for s in full)  # graphs may have no edges
    }
    low = min(float(values.min()) for values in shares.values())
    bins = np.linspace(min(low, 0.98), 1.0, 41).tolist()
    for name, values in shares.items():
        color = NODES if name == "nodes" else EDGES
        axes.hist(values, bins=bins, color=color, alpha=0.65, label=name)
    axes.set(xlabel="share of a batch's rows that is real", ylabel="batches")
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.1f}%")
    axes.legend(frameon=False, loc="upper left")
    axes.set_title(f"filling of each batch of {how_many(most, 'graph')}", loc="left", fontsize=11)


def running_mean(values: np.ndarray, weights: np.ndarray, width: int) -> np.ndarray:
    """The weighted mean of each value and the ``width - 1`` before it; of fewer at the start."""
    weighted = np.cumsum(np.insert(values * weights, 0, 0.0))
    weight = np.cumsum(np.insert(weights, 0, 0))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - width)
    return (weighted[end] - weighted[start]) / (weight[end] - weight[start])


def _components(capacity: Capacity) -> tuple[tuple[str, str, int], ...]:
    return (
        ("nodes", NODES, capacity.nodes),
        ("edges", EDGES, max(1, capacity.edges)),
        ("graphs", GRAPHS, capacity.graphs),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
