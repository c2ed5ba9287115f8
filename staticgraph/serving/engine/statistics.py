"""What a server did so far, and how long a caller waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table

# Percentiles are of so many last requests, and the pace is of so many last batches.
LAST_REQUESTS = 4096
LAST_BATCHES = 32


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of seconds: the median, and what 90 and 99 of 100 stay below. NaN before the first."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Percentiles:
        """Of these values."""
        values = np.fromiter(seconds, np.float64)
        if not len(values):
            return cls(*[float("nan")] * 3)
        return cls(*map(float, np.percentile(values, (50, 90, 99))))


@dataclass(frozen=True, slots=True)
class ServerStats:
    """A server at one moment.

    Attributes:
        queue: graphs that wait.
        answered, failed, refused, cancelled: requests, by how they ended; refused are those that
            met a full queue.
        graphs: that were answered.
        batches: that ran.
        failing: batches that failed since the last one that did not.
        wait_s: of the last requests' graphs, from their arrival until their batch began.
        latency_s: of the last requests, from their arrival to their answer.
        filling: real rows over physical rows of nodes, edges and graphs.
        by_bucket: batches that ran in each bucket.
    """

    queue: int
    answered: int
    failed: int
    refused: int
    cancelled: int
    graphs: int
    batches: int
    failing: int
    wait_s: Percentiles
    latency_s: Percentiles
    filling: tuple[float, float, float]
    by_bucket: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is not known yet is NaN."""
        return asdict(self)

    def __str__(self) -> str:
        nodes, edges, graphs = self.filling
        rows = [
            (name, *(f"{1e3 * value:.1f} ms" for value in (each.p50, each.p90, each.p99)))
            for name, each in (("wait", self.wait_s), ("latency", self.latency_s))
        ]
        return (
            f"{how_many(self.answered, 'request')} answered ({how_many(self.graphs, 'graph')} in "
            f"{how_many(self.batches, 'batch')}), {self.failed:,} failed, {self.refused:,} "
            f"refused, {self.cancelled:,} cancelled; {how_many(self.queue, 'graph')} waiting\n"
            f"filling: nodes {nodes:.1%}, edges {edges:.1%}, graphs {graphs:.1%}\n\n"
            + table(("", "p50", "p90", "p99"), rows)
        )


class Counts:
    """What is counted while a server runs; its caller holds the lock."""

    answered: int
    graphs: int

    def __init__(self, capacities: tuple[Capacity, ...]) -> None:
        self._capacities = capacities
        self.answered = self.failed = self.refused = self.cancelled = self.graphs = 0
        self.failing = 0
        self._by_bucket = [0] * len(capacities)
        self._real = np.zeros(3, np.int64)
        self._physical = np.zeros(3, np.int64)
        self._waits: deque[float] = deque(maxlen=LAST_REQUESTS)
        self._latencies: deque[float] = deque(maxlen=LAST_REQUESTS)
        self._pace: deque[tuple[int, float]] = deque(maxlen=LAST_BATCHES)

    def batch(self, bucket: int, real: tuple[int, int, int], waits: list[float]) -> None:
        """A batch begins: real nodes, edges and graphs, and how long each request waited."""
        capacity = self._capacities[bucket]
        self._by_bucket[bucket] += 1
        self._real += real
        self._physical += (capacity.nodes, capacity.edges, capacity.graphs)
        self._waits.extend(waits)

    def ran(self, graphs: int, seconds: float) -> None:
        """A batch is over."""
        self._pace.append((graphs, seconds))

    def answer(self, graphs: int, latency_s: float) -> None:
        """A request was answered."""
        self.answered += 1
        self.graphs += graphs
        self._latencies.append(latency_s)

    def seconds_for(self, graphs: int) -> float:
        """How long so many graphs take at the pace of the last batches; 0 before the first."""
        done, seconds = sum(n for n, _ in self._pace), sum(s for _, s in self._pace)
        return graphs * seconds / done if done else 0.0

    def stats(self, queue: int) -> ServerStats:
        """All of it, with so many graphs that wait."""
        filling = self._real / np.maximum(self._physical, 1)
        return ServerStats(
            queue=queue,
            answered=self.answered,
            failed=self.failed,
            refused=self.refused,
            cancelled=self.cancelled,
            graphs=self.graphs,
            batches=sum(self._by_bucket),
            failing=self.failing,
            wait_s=Percentiles.of(self._waits),
            latency_s=Percentiles.of(self._latencies),
            filling=(float(filling[0]), float(filling[1]), float(filling[2])),
            by_bucket=tuple(self._by_bucket),
        )
