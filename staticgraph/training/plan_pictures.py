"""Pictures of a plan: sizes and buckets, efficiency over limits, filling, and cost by buckets."""

from __future__ import annotations

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
from staticgraph.training.plots import COLORS, RED, Draw, save_mosaic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The map's limits go up to this multiple of the largest graph, with this many steps per axis.
MAP_REACH, MAP_STEPS = 3.0, 36


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


def save_map(path: Path, limits: EfficiencyMap) -> None:
    """Writes the map as ``max_nodes,max_edges,harmonic_mean``."""
    lines = ["max_nodes,max_edges,harmonic_mean"]
    for (a, b), share in np.ndenumerate(limits.harmonic):
        lines.append(f"{limits.nodes[a]},{limits.edges[b]},{share:.6f}")
    atomic.write_text(path, "\n".join(lines) + "\n")


def save_plan_picture(
    path: Path,
    histogram: SizeHistogram,
    limits: EfficiencyMap,
    packings: Sequence[Packing],
    plan: BucketPlan | None = None,
) -> bool:
    """Draws sizes and buckets, efficiency over limits, and the filling of packs."""
    panels: dict[str, Draw] = {
        "S": lambda axes: _draw_sizes(axes, histogram, plan),
        "M": lambda axes: _draw_map(axes, limits, packings),
        "F": lambda axes: _draw_pack_filling(axes, _fills(histogram, packings, plan)),
    }
    return save_mosaic(path, (16, 4.8), "", panels)


def save_cost_picture(path: Path, name: str, choices: list[SeveralChoice]) -> bool:
    """Draws the cost of an epoch against the number of buckets."""

    def draw(axes: Axes) -> None:
        """Draws the curve, and a square at its knee."""
        last, costs = knee(choices), [100 * each.cost / choices[0].cost for each in choices]
        axes.plot(range(1, len(costs) + 1), costs, "o-", label=name)
        axes.plot(last + 1, costs[last], "s", color=RED, markersize=11, fillstyle="none")
        axes.set(xlabel="buckets", ylabel="cost of an epoch, % of that of one bucket")
        axes.set_ylim(0, None)
        axes.set_title("What several buckets save (square: the last that saves 5%)")
        axes.locator_params(axis="x", integer=True)
        axes.legend()

    return save_mosaic(path, (7, 4.5), "", {"C": draw})


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
        axes.legend()


def _draw_map(axes: Axes, limits: EfficiencyMap, packings: Sequence[Packing]) -> None:
    """Draws the harmonic mean of the efficiencies over limits, with the best one marked."""
    mesh = axes.pcolormesh(limits.edges, limits.nodes, 100 * limits.harmonic, shading="nearest")
    axes.figure.colorbar(mesh, ax=axes, label="harmonic mean of the efficiencies, %")
    nodes, edges, value = limits.best
    axes.plot(edges, nodes, "o", color=RED, fillstyle="none", markersize=12)
    for packing in packings:
        if packing.limits[0] <= limits.nodes[-1] and packing.limits[1] <= limits.edges[-1]:
            axes.plot(packing.limits[1], packing.limits[0], "P", color="white", markersize=9)
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


def _fills(
    histogram: SizeHistogram, packings: Sequence[Packing], plan: BucketPlan | None
) -> np.ndarray:
    """The filling of nodes and edges, ``[packs, 2]``, of packings or of an epoch of a plan."""
    if plan is None:
        return np.concatenate(
            [
                np.repeat(p.loads[:, :2] / np.maximum(1, p.limits[:2]), p.counts, axis=0)
                for p in packings
            ]
        )
    sizes = sizes_of(histogram)
    batches = Batcher(sizes, plan, exact=plan.batch_size is not None, shuffle=True).epoch(0)
    rooms = np.array([(capacity.nodes, capacity.edges) for capacity in plan.capacities])
    real = np.array([sizes[batch.ids, :2].sum(axis=0) for batch in batches])
    return real / np.maximum(1, rooms[[batch.bucket for batch in batches]])
