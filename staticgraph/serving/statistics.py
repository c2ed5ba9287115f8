"""A server's statistics: requests, batches, waiting times and latencies."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table

# Percentiles cover this many of the last requests, throughput this many of the last batches.
LAST_REQUESTS = 4096
LAST_BATCHES = 32


class Percentiles(NamedTuple):
    """The 50th, 90th and 99th percentiles of times in seconds; NaN without any value."""

    p50: float
    p90: float
    p99: float


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
        wait_s, latency_s: time from the arrival of a request until a batch with its graphs began,
            and until its answer, over the last requests.
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
    filling: tuple[float, ...]
    by_bucket: tuple[int, ...]

    def __str__(self) -> str:
        nodes, edges, graphs = self.filling
        times = {"wait": self.wait_s, "latency": self.latency_s}
        rows = [(k, *(f"{1e3 * value:.1f} ms" for value in each)) for k, each in times.items()]
        return (
            f"{how_many(self.answered, 'request')} answered ({how_many(self.graphs, 'graph')} in "
            f"{how_many(self.batches, 'batch')}), {self.failed:,} failed, {self.refused:,} "
            f"refused, {self.cancelled:,} cancelled; {how_many(self.queue, 'graph')} waiting\n"
            f"filling: nodes {nodes:.1%}, edges {edges:.1%}, graphs {graphs:.1%}\n\n"
            + table(("", "p50", "p90", "p99"), rows)
        )


class Counts:
    """The counters of a running server; the caller holds the lock."""

    def __init__(self, capacities: tuple[Capacity, ...]) -> None:
        self._physical = np.array([(c.nodes, c.edges, c.graphs) for c in capacities])
        self._by_bucket = np.zeros(len(capacities), np.int64)
        self._real = np.zeros(3, np.int64)
        self._waits: deque[float] = deque(maxlen=LAST_REQUESTS)
        self._latencies: deque[float] = deque(maxlen=LAST_REQUESTS)
        self._pace: deque[tuple[int, float]] = deque(maxlen=LAST_BATCHES)
        self._graphs = 0
        self.failing: int = 0
        # Requests, by how they ended.
        self.ended: Counter[str] = Counter(answered=0, failed=0, refused=0, cancelled=0)

    def batch(self, bucket: int, real: tuple[int, int, int], waits: list[float]) -> None:
        """Counts a batch that begins: real nodes, edges and graphs, and each request's wait."""
        self._by_bucket[bucket] += 1
        self._real += real
        self._waits.extend(waits)

    def ran(self, graphs: int, seconds: float) -> None:
        """Counts a batch that ended well."""
        self.failing = 0
        self._pace.append((graphs, seconds))

    def answer(self, graphs: int, latency_s: float) -> None:
        """Counts an answered request."""
        self.ended["answered"] += 1
        self._graphs += graphs
        self._latencies.append(latency_s)

    def seconds_for(self, graphs: int) -> float:
        """Seconds for this many graphs at the rate of the last batches; 0 before the first."""
        done, seconds = np.sum(self._pace, axis=0) if self._pace else (1, 0.0)
        return float(graphs * seconds / done)

    def stats(self, queue: int) -> ServerStats:
        """A snapshot of the counters, with ``queue`` graphs waiting."""
        filling = self._real / np.maximum(self._by_bucket @ self._physical, 1)
        wait_s, latency_s = (
            Percentiles(*np.percentile(seconds or [np.nan], (50, 90, 99)).tolist())
            for seconds in (self._waits, self._latencies)
        )
        return ServerStats(
            queue=queue,
            graphs=self._graphs,
            batches=int(self._by_bucket.sum()),
            wait_s=wait_s,
            latency_s=latency_s,
            filling=tuple(filling.tolist()),
            by_bucket=tuple(self._by_bucket.tolist()),
            failing=self.failing,
            **self.ended,
        )
