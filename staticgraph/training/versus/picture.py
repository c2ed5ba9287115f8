"""The plot of a comparison: throughput, memory, losses and filling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from staticgraph.files import atomic
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.training.versus.report import SideReport, VersusReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which is distinguishable with any colour vision.
PLAIN, OURS, WINNER = "#999999", "#56B4E9", "#0072B2"
NODES, EDGES, PADDING = "#0072B2", "#E69F00", "#DDDDDD"
# The colours of loss lines; each line is thinner than the one below it, so that all show.
LINES = ("#999999", "#56B4E9", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7")
# Losses within this share of each other are drawn as equal: the table has their differences.
ALIKE = 0.01
# With fewer steps than this, every step has a tick.
FEW = 8
MEBI = 1 << 20


def save_versus_picture(path: Path, report: VersusReport) -> None:
    """Writes a PNG: throughput and memory above, losses and filling below.

    Args:
        path: the path of the PNG.
        report: the report of a comparison in which at least one side ran.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sides = [side for side in report.sides if side.ran]
    figure = Figure(figsize=(11, 3.4 + 0.8 * len(sides)), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user chose
    figure.suptitle(
        f"{report.model} on {report.data}, batches of {report.batch_size}, {report.device}",
        fontsize=13,
    )
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    draw_rates(figure.add_subplot(grid[0, 0]), sides, report)
    draw_memory(figure.add_subplot(grid[0, 1]), sides, report)
    draw_losses(figure.add_subplot(grid[1, 0]), sides, report)
    draw_filling(figure.add_subplot(grid[1, 1]), sides)
    atomic.save_figure(path, figure, dpi=120)


def draw_rates(axes: Axes, sides: Sequence[SideReport], report: VersusReport) -> None:
    """Draws the median of graphs per second, with whiskers from the 10th to the 90th percentile."""
    rates = [side.graphs_per_s or 0.0 for side in sides]
    low = [max(0.0, r - (s.graphs_per_s_low or r)) for r, s in zip(rates, sides, strict=True)]
    high = [max(0.0, (s.graphs_per_s_high or r) - r) for r, s in zip(rates, sides, strict=True)]
    axes.barh(
        range(len(sides)),
        rates,
        color=[_color(side, report) for side in sides],
        xerr=[low, high],
        error_kw={"ecolor": "black", "elinewidth": 1, "capsize": 3},
    )
    most = max(rate + above for rate, above in zip(rates, high, strict=True))
    for place, (side, rate, above) in enumerate(zip(sides, rates, high, strict=True)):
        times = "" if side.name == report.compared_with else f", {side.ratio:.2f} times"
        axes.text(rate + above + 0.02 * most, place, f"{rate:,.0f}{times}", va="center")
    _name_places(axes, sides)
    axes.set_xlim(0, 1.5 * most)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(
        "training graphs per second, loading included (more is better)\n"
        "whiskers: 10th to 90th percentile; dark: to be taken"
    )
    axes.set_title(f"throughput, and times {report.compared_with}", loc="left", fontsize=11)


def draw_memory(axes: Axes, sides: Sequence[SideReport], report: VersusReport) -> None:
    """Draws the memory that is held, and on top of it what a step adds."""
    held = [0.0 if s.memory is None else s.memory.held_bytes / MEBI for s in sides]
    added = [0.0 if s.memory is None else s.memory.step_bytes / MEBI for s in sides]
    places = range(len(sides))
    axes.barh(places, held, color="#BBBBBB")
    axes.barh(places, added, left=held, color="#CC79A7")
    most = max([h + a for h, a in zip(held, added, strict=True)] + [1e-9])
    for place, (side, h, a) in enumerate(zip(sides, held, added, strict=True)):
        if side.memory is not None:
            text = human_bytes(side.memory.total_bytes)
            axes.text(h + a + 0.02 * most, place, text, va="center")
    _name_places(axes, sides)
    axes.set_xlim(0, 1.3 * most)
    axes.set_xlabel("MiB at the peak of a training step (less is better)")
    axes.set_title("memory: held (grey), and added by a step", loc="left", fontsize=11)


def draw_losses(axes: Axes, sides: Sequence[SideReport], report: VersusReport) -> None:
    """Draws the losses of the first turn, from the same weights over the same batches."""
    for number, side in enumerate(sides):
        width = 1.0 + 1.5 * (len(sides) - 1 - number)
        axes.plot(
            range(1, len(side.losses) + 1),
            side.losses,
            label=side.name,
            color=LINES[number % len(LINES)],
            linewidth=width,
            markersize=4.0 + 2 * width,
            marker="o" if len(side.losses) == 1 else None,
        )
    axes.set(xlabel="step", ylabel="loss")
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    steps = max([len(side.losses) for side in sides] + [1])
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
    told = "random numbers are drawn, so not compared" if report.random else "not compared"
    if compared:
        told = "equal" if all(compared) else "NOT EQUAL"
    axes.set_title(f"losses of the first turn: {told}", loc="left", fontsize=11)


def draw_filling(axes: Axes, sides: Sequence[SideReport]) -> None:
    """Draws the share of real nodes and edges; the rest is padding."""
    for place, side in enumerate(sides):
        if side.filling is None:
            continue
        for offset, share, color, what in (
            (-0.2, side.filling.nodes, NODES, "nodes"),
            (0.2, side.filling.edges, EDGES, "edges"),
        ):
            axes.barh(place + offset, 1.0, height=0.36, color=PADDING)
            axes.barh(place + offset, share, height=0.36, color=color)
            axes.text(0.02, place + offset, f"{100 * share:.1f}% of {what}", va="center",
                      color="white" if color == NODES else "black", fontsize=9)  # fmt: skip
    _name_places(axes, sides)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.set_xlabel("share of the rows that is real (grey: padding)")
    axes.set_title("filling", loc="left", fontsize=11)


def _name_places(axes: Axes, sides: Sequence[SideReport]) -> None:
    axes.set_yticks(range(len(sides)), [side.name for side in sides])
    axes.invert_yaxis()


def _color(side: SideReport, report: VersusReport) -> str:
    if side.name == report.winner and not side.name.startswith("PyG"):
        return WINNER
    return PLAIN if side.name.startswith("PyG") else OURS
