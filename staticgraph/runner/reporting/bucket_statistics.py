"""What one bucket did: batches, fill and times, counted without waiting for the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.runner.reporting.report import BucketReport
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.compiled_function import CompileCounts

# Enough for the median and the 90th percentile of recent steps.
TIMES_KEPT = 512


Events = tuple[torch.cuda.Event, torch.cuda.Event]


class BucketStatistics:
    """Counts of one bucket, in plain numbers.

    Times on CUDA are pairs of events, read only for a report and reused once their time is dropped.
    """

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self.capacity = capacity
        self._device = device
        # Training batches are counted separately: evaluation packs as many graphs as fit.
        self._batches = [0, 0]
        self._real = [[0, 0, 0], [0, 0, 0]]
        self._on_cuda = device.type == "cuda"
        self._seconds: deque[float] = deque(maxlen=TIMES_KEPT)
        self._events: deque[Events] = deque()
        self._spare: Events | None = None  # the current step's, or left by one that failed

    def count(self, real: RealCounts, work: str) -> None:
        """Counts one more batch."""
        training = work == "step"
        self._batches[training] += 1
        counts = self._real[training]
        counts[0] += real.nodes
        counts[1] += real.edges
        counts[2] += real.graphs

    @property
    def batches(self) -> int:
        """How many batches there were, for training and for evaluation."""
        return sum(self._batches)

    @property
    def real_rows(self) -> int:
        """How many nodes, edges and graphs they had together."""
        return sum(map(sum, self._real))

    @property
    def physical_rows(self) -> int:
        """How many rows of nodes, edges and graphs the bucket has."""
        return self.capacity.nodes + self.capacity.edges + self.capacity.graphs

    def started(self) -> float:
        """Starts timing a step, on CUDA by an event, without synchronising; for :meth:`ended`."""
        if not self._on_cuda:
            return time.perf_counter()
        if self._spare is None:
            if len(self._events) < TIMES_KEPT:
                timed = partial(torch.cuda.Event, enable_timing=True)
                self._spare = timed(), timed()
            else:
                self._spare = self._events.popleft()
        self._spare[0].record(torch.cuda.current_stream(self._device))
        return 0.0

    def ended(self, started: float) -> None:
        """Ends the timing of the step that began at ``started``."""
        if self._spare is None:
            self._seconds.append(time.perf_counter() - started)
        else:
            self._spare[1].record(torch.cuda.current_stream(self._device))
            self._events.append(self._spare)
            self._spare = None

    def report(
        self, bucket: int, counts: Sequence[CompileCounts], recorded: int = 0, late: int = 0
    ) -> BucketReport:
        """Returns the counts as plain numbers; waits for the device.

        ``recorded`` is added to the number of torch's recordings; ``late`` is how many functions
        were compiled after the warm-up.
        """
        times = [1e3 * s for s in self._seconds]
        if self._events:
            torch.cuda.synchronize(self._device)
            times = [start.elapsed_time(end) for start, end in self._events]
        physical = np.array([self.capacity.nodes, self.capacity.edges, self.capacity.graphs])
        training = self._batches[True] > 0
        batches, real = self._batches[training], np.array(self._real[training])
        filled = real / np.maximum(1, physical * batches)
        shares = [float(share) for share in filled] if batches else [None] * 3
        return BucketReport(
            bucket=bucket,
            nodes=self.capacity.nodes,
            edges=self.capacity.edges,
            graphs=self.capacity.graphs,
            batches=self._batches[True],
            eval_batches=self._batches[False],
            real_graphs=int(real[2]),
            node_efficiency=shares[0],
            edge_efficiency=shares[1],
            graph_efficiency=shares[2],
            compiles=sum(c.compiles for c in counts),
            late_compiles=late,
            graph_breaks=sum(c.graph_breaks for c in counts),
            recordings=recorded + sum(c.recordings for c in counts),
            compile_s=sum(c.seconds for c in counts),
            step_ms=float(np.median(times)) if times else None,
            step_ms_p90=float(np.percentile(times, 90)) if times else None,
        )
