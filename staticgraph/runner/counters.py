"""What the runners of this process took, compiled, recorded and ran: counted and reported.

A step that compiles again, or that silently runs in another way, costs what fixed shapes were to
save, and shows in no result. So the counts are public, and :func:`no_recompile` turns them into an
error.

:func:`take` is the one place where a batch enters a runner, and is counted. The reference calls
(``eager_step``, ``eager_forward``) do not pass it, and leave no trace in a report. Counting waits
for no device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from staticgraph.batches.batch.batch_arrays import looked_in_epoch
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import UNPLANNED
from staticgraph.errors import NotStatic
from staticgraph.files.versions import STEPS, versions
from staticgraph.internals.tracing import counters as torch_counters
from staticgraph.runner.report import BucketReport, Report
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.attention_choices import attention_choices
from staticgraph.steps.compilation.compiled_function import CompileCounts, skipped_recordings_of
from staticgraph.text.how_many import how_many

# The runners of this process.
RUNNERS: WeakSet[Any] = WeakSet()
# How torch's error of the stance that is set here begins.
_DETECTED = "Detected recompile"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the process began (compilations) or of the runners that there are now.

    Attributes:
        compilations: graphs that ``torch.compile`` compiled, the user's own functions included.
        recordings: CUDA graphs that were recorded.
        replays: how often they ran.
        fallbacks: steps that run in another way than was chosen for them, as a report lists them.
        batches: batches that the runners took.
        padding: the share of padding among their rows of nodes, edges and graphs together.
    """

    compilations: int
    recordings: int
    replays: int
    fallbacks: int
    batches: int
    padding: float


def counters() -> Counters:
    """Returns the counts of this process; waits for no device."""
    recordings = replays = fallbacks = batches = real = rows = 0
    for runner in list(RUNNERS):
        recorded = runner.steps.recorded
        if recorded is not None:
            recordings += len(recorded.counts)
            replays += sum(recorded.counts.values())
        recordings += sum(count.recordings for _, count in runner.steps.compiled.counts)
        fallbacks += len(fallbacks_of(runner))
        for statistics in runner.statistics:
            batches += statistics.batches
            real += statistics.real_rows
            rows += statistics.physical_rows
    return Counters(
        torch_counters["stats"]["unique_graphs"],
        recordings,
        replays,
        fallbacks,
        batches,
        1 - real / rows if rows else 0.0,
    )


@contextmanager
def no_recompile() -> Iterator[None]:
    """A ``with`` block in which nothing is compiled or recorded, after a warm-up for instance.

    Raises:
        NotStatic: something was. A function that compiles again raises at once, with the guard that
            failed in torch's words; anything new, when the block ends.
    """
    before = counters()
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if not str(error).startswith(_DETECTED):
            raise
        raise NotStatic(f"a function was compiled again inside no_recompile(): {error}") from error
    after = counters()
    compiled = after.compilations - before.compilations
    recorded = after.recordings - before.recordings
    if compiled > 0 or recorded > 0:
        raise NotStatic(
            f"{how_many(max(0, compiled), 'graph')} compiled and "
            f"{how_many(max(0, recorded), 'graph')} recorded inside no_recompile(): call "
            "runner.warmup() before it, with the phases that run inside; runner.report() says "
            "which bucket it was"
        )


# Enough for the median and the 90th percentile of recent steps.
TIMES_KEPT = 512


Events = tuple[torch.cuda.Event, torch.cuda.Event]


class BucketStatistics:
    """Counts of one bucket, in plain numbers.

    Times on CUDA are pairs of events, read only for a report and reused once their time is dropped.

    Args:
        capacity: of the bucket; None for batches that kept their own sizes.
        device: of the batches.
    """

    def __init__(self, capacity: Capacity | None, device: torch.device) -> None:
        self._rows = (capacity.nodes, capacity.edges, capacity.graphs) if capacity else (0, 0, 0)
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
        """How many rows of nodes, edges and graphs they had with padding; as many, to within a few,
        where they kept their own sizes."""
        return self.batches * sum(self._rows) or self.real_rows

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
        training = self._batches[True] > 0
        batches, real = self._batches[training], np.array(self._real[training])
        filled = real / np.maximum(1, np.array(self._rows) * batches)
        shares = [float(share) for share in filled] if batches and any(self._rows) else [None] * 3
        nodes, edges, graphs = self._rows
        return BucketReport(
            bucket=bucket,
            nodes=nodes,
            edges=edges,
            graphs=graphs,
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


def take(runner: Any, batch: StaticBatch, work: str) -> StaticBatch:
    """Takes a batch in, and returns it as the steps take it.

    Args:
        runner: the runner whose call this is.
        batch: of a bucket of the plan.
        work: ``step`` or ``forward``.

    Raises:
        TypeError, ValueError: as :meth:`staticgraph.runner.steps.Steps.accept`.
        PaddingLeaks: padding reaches real rows.
    """
    steps, preparation = runner.steps, runner.preparation
    if steps.computation.newcomers.came:
        preparation.forget()
    batch = steps.accept(batch)
    alone = steps.ranks is None or work != "step"
    if batch.bucket == UNPLANNED and (preparation.commitments is not None or not alone):
        raise ValueError(
            "a batch that kept its own size (min_fill=) runs in eager, which a memory budget has "
            "no room for and other ranks do not wait for: leave out min_fill="
        )
    if preparation.commitments is not None:
        preparation.commitments.use(batch.bucket)
    if batch.real is not None:
        runner.statistics[batch.bucket].count(batch.real, work)
    training = work == "step" or runner.subject.model.training
    preparation.taken += training
    if (
        (batch.bucket, work, training, batch.layout.schema.keep_order) not in preparation.ready
        or (training and preparation.taken >= preparation.next_look)
        or (training and looked_in_epoch(batch) is not preparation.epoch)
    ):
        return preparation.look_at(batch, work)
    return batch


def fallbacks_of(runner: Any) -> tuple[str, ...]:
    """Returns a sentence for every step that runs in another way than was chosen for it."""
    recorded = runner.steps.recorded
    compiled = runner.steps.compiled
    notes = *runner.preparation.notes, *(compiled.notes.values() if runner.steps.fused else ())
    skipped = skipped_recordings_of(compiled.counts)
    return (*notes, *skipped, *(recorded.missed() if recorded else ()))


def report_of(runner: Any) -> Report:
    """Returns what a runner did so far, in plain values; each is read from its owner."""
    subject, steps, prepared = runner.subject, runner.steps, runner.preparation
    counts, recorded = steps.compiled.counts, steps.recorded
    replays = recorded.counts if recorded else {}
    commitments = prepared.commitments

    def report_bucket(bucket: int) -> BucketReport:
        """Returns the report of one bucket, with its bytes under a budget."""
        compiled = [count for key, count in counts if key.bucket == bucket]
        replayed = sum(key.bucket == bucket for key in replays)
        late = steps.compiled.late[bucket]
        report = runner.statistics[bucket].report(bucket, compiled, replayed, late)
        return replace(report, **(commitments.of_bucket(bucket) if commitments else {}))

    padded = None if runner.padder is None else runner.padder.counts
    fallbacks = fallbacks_of(runner)
    if padded is not None and padded.overflowed + padded.unplanned:
        fallbacks = *fallbacks, str(padded)
    of_own_size = runner.statistics[UNPLANNED]
    unplanned = [of_own_size.report(UNPLANNED, ())] if of_own_size.batches else []
    return Report(
        model=type(subject.model).__name__,
        device=device_name(subject.device),
        mode="auto" if prepared.choices else steps.mode.name,
        mode_reason="chosen by time, see below" if prepared.choices else steps.mode.reason,
        autocast=subject.precision,
        warmup_s=prepared.seconds,
        warm_start=prepared.cold_s is not None,
        cold_start_s=prepared.cold_s,
        replays={str(key): count for key, count in replays.items()},
        buckets=(*map(report_bucket, range(len(runner.plan.capacities))), *unplanned),
        fallbacks=fallbacks,
        versions=versions(STEPS),
        choices=prepared.choices,
        attention=attention_choices(
            subject.model,
            runner.plan.capacities,
            device=subject.device,
            dtype=subject.autocast,
            training=subject.optimizer is not None,
        ),
        optional=steps.computation.optional or (),
    )


def device_name(device: torch.device) -> str:
    """Returns a GPU's name, or the CPU with the number of threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({how_many(torch.get_num_threads(), 'thread')})"
