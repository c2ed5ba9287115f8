"""A server's statistics: requests, batches, waiting times and latencies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table

# Percentiles cover this many of the last requests, throughput this many of the last batches.
LAST_REQUESTS = 4096
LAST_BATCHES = 32


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 50th, 90th and 99th percentiles of times in seconds; NaN without any value."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Percentiles:
        """The percentiles of these times."""
        values = np.fromiter(seconds, np.float64)
        if not len(values):
            return cls(*[float("nan")] * 3)
        return cls(*map(float, np.percentile(values, (50, 90, 99))))


@dataclass(frozen=True, slots=True)
class ServerStats:
    """A snapshot of a server's statistics.

    Attributes:
        queue: graphs that wait.
        answered, failed, refused, cancelled: requests, by how they ended; refused ones met a full
            queue.
        graphs: graphs that were answered.
        batches: batches that ran.
        failing: consecutive batches that failed since the last successful one.
        wait_s: time from the arrival of a request until a batch with its graphs began, over the
            last requests.
        latency_s: time from the arrival of a request until its answer, over the last requests.
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
    """The counters of a running server; the caller holds the lock."""

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
        """Counts a batch that begins: real nodes, edges and graphs, and each request's wait."""
        capacity = self._capacities[bucket]
        self._by_bucket[bucket] += 1
        self._real += real
        self._physical += (capacity.nodes, capacity.edges, capacity.graphs)
        self._waits.extend(waits)

    def ran(self, graphs: int, seconds: float) -> None:
        """Counts a batch that ended."""
        self._pace.append((graphs, seconds))

    def answer(self, graphs: int, latency_s: float) -> None:
        """Counts an answered request."""
        self.answered += 1
        self.graphs += graphs
        self._latencies.append(latency_s)

    def seconds_for(self, graphs: int) -> float:
        """Seconds for this many graphs at the rate of the last batches; 0 before the first."""
        done, seconds = sum(n for n, _ in self._pace), sum(s for _, s in self._pace)
        return graphs * seconds / done if done else 0.0

    def stats(self, queue: int) -> ServerStats:
        """A snapshot of the counters, with ``queue`` graphs waiting."""
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
