"""The report of a plan over one shuffled epoch: plain values for programs, a table for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.packing.pack import harmonic_mean
from staticgraph.plans.cost import StepCost
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table


def plan_values(
    plan: BucketPlan, histogram: SizeHistogram, price: StepCost, seconds: float
) -> dict[str, Any]:
    """Runs the batcher for one epoch, and counts its batches.

    Args:
        plan: the plan of the histogram.
        histogram: the sizes of all graphs.
        price: the cost of a step.
        seconds: the time to choose the plan.

    Returns:
        Plain values, for JSON: ``packs`` is the number of batches, ``volume_bound`` the fewest
        that the volume of the last bucket allows, and efficiencies are real over physical rows.
    """
    sizes = sizes_of(histogram)
    batcher = Batcher(sizes, plan, exact=plan.batch_size is not None, shuffle=True)
    batches = batcher.epoch(0)
    buckets, real, room = [], np.zeros(2), np.zeros(2)
    for number, capacity in enumerate(plan.capacities):
        packed = [batch.ids for batch in batches if batch.bucket == number]
        ids = np.concatenate([*packed, np.empty(0, dtype=np.int64)])
        rows, count = sizes[ids, :2].sum(axis=0), max(1, len(packed))
        filled = (rows / (count * np.maximum(1, [capacity.nodes, capacity.edges]))).tolist()
        real += rows
        room += len(packed) * np.array([capacity.nodes, capacity.edges])
        buckets.append(
            {
                "nodes": capacity.nodes,
                "edges": capacity.edges,
                "graphs": capacity.graphs,
                "max_graph_nodes": capacity.max_graph_nodes,
                "batches": len(packed),
                "node_efficiency": filled[0],
                "edge_efficiency": filled[1],
                "graph_efficiency": len(ids) / (count * capacity.graphs),
                "cost": price.of(capacity) * len(packed),
            }
        )
    nodes, edges = (real / np.maximum(1, room)).tolist()
    last = plan.capacities[-1]
    limits = np.maximum(1, [last.node_limit, last.edge_limit])
    return {
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
    unusual = [
        f"{how_many(values['stats'][name], 'batch')} {what}"
        for name, what in (
            ("rebalanced", "exchanged graphs with others to fit"),
            ("spilled", "needed a larger bucket"),
            ("split", "had to be split in two"),
        )
        if values["stats"][name]
    ]
    lines += [", ".join(unusual)] if unusual else []
    lines += [
        "largest graph: nodes of the largest that a bucket takes; cost: of all batches of",
        "an epoch, in units of what a step spends on a node",
    ]
    return "\n".join(lines)
