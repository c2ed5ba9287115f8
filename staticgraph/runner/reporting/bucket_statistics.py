"""What one bucket did: batches, filling and time, counted without waiting for the device."""

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

# Enough for a median and a 90th percentile of what runs now.
TIMES_KEPT = 512


Events = tuple[torch.cuda.Event, torch.cuda.Event]


class BucketStatistics:
    """Counts of one bucket, in plain numbers. Times on CUDA are pairs of events, read only when
    reported, and used again where their time is no longer kept."""

    def __init__(self, capacity: Capacity, device: torch.device) -> None:
        self.capacity = capacity
        self._device = device
        # Training batches and others apart: evaluation packs as many graphs as fit.
        self._batches = [0, 0]
        self._real = [[0, 0, 0], [0, 0, 0]]
        self._on_cuda = device.type == "cuda"
        self._seconds: deque[float] = deque(maxlen=TIMES_KEPT)
        self._events: deque[Events] = deque()
        self._spare: Events | None = None  # recorded on no way to an end: not among the times

    def count(self, real: RealCounts, work: str) -> None:
        """One more batch."""
        training = work == "step"
        self._batches[training] += 1
        counts = self._real[training]
        counts[0] += real.nodes
        counts[1] += real.edges
        counts[2] += real.graphs

    def started(self) -> float:
        """A step begins; on CUDA an event tells, without synchronising. For :meth:`ended`."""
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
        """The step that began then is over."""
        if self._spare is None:
            self._seconds.append(time.perf_counter() - started)
        else:
            self._spare[1].record(torch.cuda.current_stream(self._device))
            self._events.append(self._spare)
            self._spare = None

    def report(
        self, bucket: int, counts: Sequence[CompileCounts], recorded: int = 0, late: int = 0
    ) -> BucketReport:
        """The counts as plain numbers, ``recorded`` added to torch's recordings, ``late`` compiled
        after the warm-up; waits for the device."""
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
