"""The report of a plan over one epoch: a table for people, plain values for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.epochs.epoch import EpochStats
from staticgraph.packing.pack import harmonic_mean
from staticgraph.plans.cost import StepCost
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table


@dataclass(frozen=True, slots=True)
class BucketRow:
    """One bucket over an epoch: its physical rows, batches, real over physical rows, and cost."""

    nodes: int
    edges: int
    graphs: int
    max_graph_nodes: int
    batches: int
    node_efficiency: float
    edge_efficiency: float
    graph_efficiency: float
    cost: float


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The report of a plan over one shuffled epoch of all graphs it was made for.

    Attributes:
        plan: the plan.
        buckets: one row per capacity.
        stats: the batcher's statistics of the epoch.
        volume_bound: the lower bound on the number of batches, by the volume of the last bucket.
        seconds: the time to choose the plan.
    """

    plan: BucketPlan
    buckets: tuple[BucketRow, ...]
    stats: EpochStats
    volume_bound: int
    seconds: float

    @classmethod
    def of(
        cls, plan: BucketPlan, histogram: SizeHistogram, price: StepCost, seconds: float
    ) -> PlanReport:
        """Runs the batcher for one epoch and counts its batches."""
        sizes = sizes_of(histogram)
        batcher = Batcher(sizes, plan, exact=plan.batch_size is not None, shuffle=True)
        batches = batcher.epoch(0)
        rows = []
        for number, capacity in enumerate(plan.capacities):
            packed = [batch.ids for batch in batches if batch.bucket == number]
            ids = np.concatenate([*packed, np.empty(0, dtype=np.int64)])
            room = max(1, len(packed)) * np.array([capacity.nodes, max(1, capacity.edges)])
            filled = sizes[ids, :2].sum(axis=0) / room
            rows.append(
                BucketRow(
                    nodes=capacity.nodes,
                    edges=capacity.edges,
                    graphs=capacity.graphs,
                    max_graph_nodes=capacity.max_graph_nodes,
                    batches=len(packed),
                    node_efficiency=float(filled[0]),
                    edge_efficiency=float(filled[1]),
                    graph_efficiency=len(ids) / (max(1, len(packed)) * capacity.graphs),
                    cost=price.of(capacity) * len(packed),
                )
            )
        last = plan.capacities[-1]
        limits = np.maximum(1, [last.node_limit, last.edge_limit])
        least = int(np.ceil((histogram.totals[:2] / limits).max()))
        return cls(plan, tuple(rows), batcher.stats, least, seconds)

    @property
    def efficiency(self) -> tuple[float, float]:
        """Real over physical rows of nodes and of edges, over the epoch."""
        real, room = np.zeros(2), np.zeros(2)
        for row in self.buckets:
            rows = row.batches * np.array([row.nodes, row.edges])
            real += rows * [row.node_efficiency, row.edge_efficiency]
            room += rows
        nodes, edges = (real / np.maximum(1, room)).tolist()
        return nodes, edges

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values; ``packs`` is the number of batches of an epoch."""
        nodes, edges = self.efficiency
        return {
            "packs": self.stats.batches,
            "node_efficiency": nodes,
            "edge_efficiency": edges,
            "harmonic_mean": harmonic_mean([nodes, edges]),
            "volume_bound": self.volume_bound,
            "cost": sum(row.cost for row in self.buckets),
            "seconds": self.seconds,
            "buckets": [asdict(row) for row in self.buckets],
            "stats": asdict(self.stats),
            "plan": self.plan.to_dict(),
        }

    def __str__(self) -> str:
        plan, stats = self.plan, self.stats
        how = (
            f"exactly {how_many(plan.batch_size, 'graph')} per batch, limits "
            f"{plan.margin or 0:.2%} above the mean batch"
            if plan.batch_size is not None
            else "as many graphs as fit"
        )
        headers = ["bucket", "nodes", "edges", "graphs", "largest graph", "batches"]
        headers += ["nodes filled", "edges filled", "graphs filled", "cost"]
        rows = [
            [
                number,
                *(f"{v:,}" for v in (r.nodes, r.edges, r.graphs, r.max_graph_nodes, r.batches)),
                f"{r.node_efficiency:.2%}",
                f"{r.edge_efficiency:.2%}",
                f"{r.graph_efficiency:.2%}",
                f"{r.cost:,.0f}",
            ]
            for number, r in enumerate(self.buckets)
        ]
        nodes, edges = self.efficiency
        return "\n".join(
            [
                f"{how_many(plan.num_graphs, 'graph')}, {how}",
                table(headers, rows),
                f"an epoch: {how_many(stats.batches, 'batch')}, at least {self.volume_bound:,} by "
                f"volume; {nodes:.2%} of nodes and {edges:.2%} of edges are real",
                *_exceptions(stats),
                "largest graph: nodes of the largest that a bucket takes; cost: of all batches of",
                "an epoch, in units of what a step spends on a node",
            ]
        )


def _exceptions(stats: EpochStats) -> list[str]:
    """What happened to batches that did not fit their bucket; empty if nothing did."""
    parts = [
        f"{how_many(count, 'batch')} {what}"
        for count, what in (
            (stats.rebalanced, "exchanged graphs with others to fit"),
            (stats.spilled, "needed a larger bucket"),
            (stats.split, "had to be split in two"),
        )
        if count
    ]
    return [", ".join(parts)] if parts else []
