"""The report of a plan: plain values for programs, a table and pictures for people.

Values are those of one shuffled epoch. The pictures show sizes and buckets, efficiency over limits,
the filling of batches, and the cost of an epoch by the number of buckets.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.epochs.epoch import EpochStats
from staticgraph.files import atomic
from staticgraph.packing.packing_result import Packing, harmonic_mean
from staticgraph.plans.cost import StepCost
from staticgraph.plans.limits import EfficiencyMap, efficiency_map
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.plans.several import SeveralChoice, knee
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table
from staticgraph.training.plots import COLORS, RED, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = ("nodes", "edges", "graphs")
EFFICIENCIES = ("node_efficiency", "edge_efficiency", "graph_efficiency")


def epoch_rows(
    plan: BucketPlan, histogram: SizeHistogram
) -> tuple[np.ndarray, np.ndarray, np.ndarray, EpochStats]:
    """The batches of one shuffled epoch of a plan.

    Returns:
        The bucket of each batch ``[batches]``; its real nodes, edges and graphs, and those that
        there is room for, ``[batches, 3]``; and what the batcher counted.
    """
    batcher = Batcher(sizes_of(histogram), plan, exact=plan.batch_size is not None, shuffle=True)
    buckets = np.array([batch.bucket for batch in batcher.epoch(0)])
    real = batcher.rows(0).sum(axis=1)[:, [1, 2, 0]]
    room = np.array([[getattr(capacity, name) for name in ROWS] for capacity in plan.capacities])
    return buckets, real, np.maximum(1, room)[buckets], batcher.stats


def plan_values(
    plan: BucketPlan, histogram: SizeHistogram, price: StepCost, seconds: float
) -> dict[str, Any]:
    """Counts the batches of one epoch.

    Args:
        plan: the plan of the histogram.
        histogram: the sizes of all graphs.
        price: the cost of a step.
        seconds: the time to choose the plan.

    Returns:
        Plain values, for JSON: ``packs`` is the number of batches, ``volume_bound`` the fewest
        that the volume of the last bucket allows, and efficiencies are real over physical rows.
    """
    numbers, real, room, stats = epoch_rows(plan, histogram)
    buckets = []
    for number, capacity in enumerate(plan.capacities):
        inside = numbers == number
        bucket = {name: getattr(capacity, name) for name in (*ROWS, "max_graph_nodes")}
        bucket["batches"] = int(inside.sum())
        filled = real[inside].sum(0) / np.maximum(1, room[inside].sum(0))
        bucket |= zip(EFFICIENCIES, filled.tolist(), strict=True)
        bucket["cost"] = price.of(capacity) * bucket["batches"]
        buckets.append(bucket)
    nodes, edges, _ = (real.sum(0) / room.sum(0)).tolist()
    last = plan.capacities[-1]
    limits = np.maximum(1, [last.node_limit, last.edge_limit])
    return {
        "packs": stats.batches,
        "node_efficiency": nodes,
        "edge_efficiency": edges,
        "harmonic_mean": harmonic_mean([nodes, edges]),
        "volume_bound": int(np.ceil((histogram.totals[:2] / limits).max())),
        "cost": sum(bucket["cost"] for bucket in buckets),
        "seconds": seconds,
        "buckets": buckets,
        "stats": asdict(stats),
        "plan": plan.to_dict(),
    }


def plan_text(plan: BucketPlan, values: dict[str, Any]) -> str:
    """The values of :func:`plan_values` as a table."""
    how = "as many graphs as fit"
    if plan.batch_size is not None:
        how = f"exactly {how_many(plan.batch_size, 'graph')} per batch, limits "
        how += f"{plan.margin or 0:.2%} above the mean batch"
    headers = ["bucket", "nodes", "edges", "graphs", "largest graph", "batches"]
    headers += ["nodes filled", "edges filled", "graphs filled", "cost"]
    formats = [*[",d"] * 5, *[".2%"] * 3, ",.0f"]
    rows = [
        [number, *map(format, bucket.values(), formats)]
        for number, bucket in enumerate(values["buckets"])
    ]
    lines = [
        f"{how_many(plan.num_graphs, 'graph')}, {how}",
        table(headers, rows),
        f"an epoch: {how_many(values['packs'], 'batch')}, at least {values['volume_bound']:,} by "
        f"volume; {values['node_efficiency']:.2%} of nodes and {values['edge_efficiency']:.2%} of "
        "edges are real",
    ]
    whats = {
        "rebalanced": "exchanged graphs with others to fit",
        "spilled": "needed a larger bucket",
        "split": "had to be split in two",
    }
    stats = values["stats"]
    unusual = [f"{how_many(stats[n], 'batch')} {what}" for n, what in whats.items() if stats[n]]
    lines += [", ".join(unusual)] if unusual else []
    lines += [
        "largest graph: nodes of the largest that a bucket takes; cost: of all batches of",
        "an epoch, in units of what a step spends on a node",
    ]
    return "\n".join(lines)


def map_around(histogram: SizeHistogram, max_graphs: int | None = None) -> EfficiencyMap:
    """Efficiencies over limits from the largest graph upwards (paper, figure 5)."""
    nodes, edges = histogram.maxima[:2].tolist()
    grain = max(1, int(np.gcd.reduce(histogram.sizes[:, 1])))
    steps = np.linspace(1.0, 3.0, 36)  # multiples of the largest graph
    return efficiency_map(
        histogram,
        np.unique(np.ceil(max(1, nodes) * steps).astype(np.int64)),
        np.unique(np.ceil(max(1, edges) * steps / grain).astype(np.int64) * grain),
        max_graphs=max_graphs,
    )


def save_map(path: Path, limits: EfficiencyMap) -> None:
    """Writes the map as ``max_nodes,max_edges,harmonic_mean``."""
    lines = ["max_nodes,max_edges,harmonic_mean\n"]
    for (a, b), share in np.ndenumerate(limits.harmonic):
        lines.append(f"{limits.nodes[a]},{limits.edges[b]},{share:.6f}\n")
    atomic.write_text(path, "".join(lines))


def draw_plan(
    histogram: SizeHistogram, limits: EfficiencyMap, result: Packing | BucketPlan
) -> Figure:
    """Draws sizes and buckets, efficiency over limits, and the filling of packs."""
    if isinstance(result, Packing):
        shares = result.loads[:, :2] / np.maximum(1, result.limits[:2])
        filling = np.repeat(shares, result.counts, 0)
    else:
        _, real, room, _ = epoch_rows(result, histogram)
        filling = real[:, :2] / room[:, :2]
    figure, (left, middle, right) = panels((16, 4.8), "", "SMF")
    _draw_sizes(left, histogram, result)
    _draw_map(middle, limits, result)
    _draw_pack_filling(right, filling)
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
    axes.legend()
    return figure


def _draw_sizes(axes: Axes, histogram: SizeHistogram, result: Packing | BucketPlan) -> None:
    """Draws one dot per size, with a line at the largest graph of each bucket."""
    order = np.argsort(histogram.counts)  # the frequent sizes on top
    nodes, edges = histogram.sizes[order, 0], histogram.sizes[order, 1]
    dots = axes.scatter(nodes, edges, s=9, c=histogram.counts[order], norm="log")
    axes.figure.colorbar(dots, ax=axes, label="graphs of this size")
    axes.set(xlabel="nodes of a graph", ylabel="edges of a graph")
    axes.set_title(f"{how_many(histogram.num_graphs, 'graph')} of {how_many(len(nodes), 'size')}")
    for number, capacity in enumerate(getattr(result, "capacities", ())):
        label = f"bucket {number}: {capacity.nodes:,} nodes, {capacity.edges:,} edges, "
        label += how_many(capacity.graphs, "graph")
        axes.axvline(capacity.max_graph_nodes, color=f"C{number + 1}", label=label)
        axes.legend()


def _draw_map(axes: Axes, limits: EfficiencyMap, result: Packing | BucketPlan) -> None:
    """Draws the harmonic mean of the efficiencies over limits, with the best one marked."""
    mesh = axes.pcolormesh(limits.edges, limits.nodes, 100 * limits.harmonic, shading="nearest")
    axes.figure.colorbar(mesh, ax=axes, label="harmonic mean of the efficiencies, %")
    nodes, edges, value = limits.best
    axes.plot(edges, nodes, "o", color=RED, fillstyle="none", markersize=12)
    if isinstance(result, Packing):
        most_nodes, most_edges = result.limits[:2]
        if most_nodes <= limits.nodes[-1] and most_edges <= limits.edges[-1]:
            axes.plot(most_edges, most_nodes, "P", color="white", markersize=9)
    axes.set(xlabel="limit on edges", ylabel="limit on nodes")
    axes.set_title(f"limits of a pack: best ({nodes}, {edges}) with {value:.2%}")


def _draw_pack_filling(axes: Axes, fills: np.ndarray) -> None:
    """Draws how full the packs are, ``[packs, 2]``, the fullest first."""
    share = 100 * np.arange(1, len(fills) + 1) / len(fills)
    for values, name in zip(fills.T, ("nodes", "edges"), strict=True):
        label = f"{name}: {values.mean():.2%} on average"
        axes.plot(share, 100 * np.sort(values)[::-1], color=COLORS[name], label=label)
    axes.set(xlabel="packs, the fullest first, %", ylabel="real over physical rows, %")
    axes.set_title(f"filling of {how_many(len(fills), 'pack')}")
    axes.legend(loc="lower left")
