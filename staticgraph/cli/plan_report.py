"""The report of a plan: plain values for programs, and a table for people."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.files import atomic
from staticgraph.packing.packing_result import harmonic_mean
from staticgraph.plans.cost import StepCost
from staticgraph.plans.limits import EfficiencyMap, efficiency_map
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table

ROWS = ("nodes", "edges", "graphs")
EFFICIENCIES = ("node_efficiency", "edge_efficiency", "graph_efficiency")


def plan_values(
    plan: BucketPlan, histogram: SizeHistogram, price: StepCost, seconds: float
) -> tuple[dict[str, Any], np.ndarray]:
    """Counts the batches of one shuffled epoch.

    Args:
        plan: the plan of the histogram.
        histogram: the sizes of all graphs.
        price: the cost of a step.
        seconds: the time to choose the plan.

    Returns:
        Plain values, for JSON: ``packs`` is the number of batches, ``volume_bound`` the fewest
        that the volume of the last bucket allows, and efficiencies are real over physical rows.
        And the node and edge efficiency of each batch, ``[packs, 2]``.
    """
    batcher = Batcher(sizes_of(histogram), plan, exact=plan.batch_size is not None, shuffle=True)
    numbers = np.array([batch.bucket for batch in batcher.epoch(0)])
    real = batcher.rows(0).sum(axis=1)[:, [1, 2, 0]]
    rows = np.array([[getattr(capacity, name) for name in ROWS] for capacity in plan.capacities])
    room = np.maximum(1, rows)[numbers]
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
    values = {
        "packs": batcher.stats.batches,
        "node_efficiency": nodes,
        "edge_efficiency": edges,
        "harmonic_mean": harmonic_mean([nodes, edges]),
        "volume_bound": int(np.ceil((histogram.totals[:2] / limits).max())),
        "cost": sum(bucket["cost"] for bucket in buckets),
        "seconds": seconds,
        "buckets": buckets,
        "stats": asdict(batcher.stats),
        "plan": plan.to_dict(),
    }
    return values, (real / room)[:, :2]


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
