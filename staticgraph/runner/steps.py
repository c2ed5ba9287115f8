"""One step of one bucket, run in one of three ways: eager, compiled, or replayed.

All of them compute the same. Which one a bucket takes is the runner's mode, or, for ``auto``, what
:mod:`staticgraph.runner.trials` found for it; nothing else in the library knows of the choice.

A *phase* is what a call is for (``step``; ``eval``: without gradients in evaluation mode;
``forward``: any other call); the *work* is what a function computes for it (``step``: forward and
mean loss; ``forward``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.pointers import with_pointers
from staticgraph.batches.slots import SlotLayout
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.distributed.share import Share
from staticgraph.errors import NotStatic
from staticgraph.recording.recorded import RecordedSteps
from staticgraph.recording.recording import Recording, Scope
from staticgraph.runner.execution import Execution
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.accumulation import Accumulation
from staticgraph.steps.averaging import Averaging
from staticgraph.steps.callbacks import without_callbacks
from staticgraph.steps.compiled_steps import CompiledSteps
from staticgraph.steps.computation import Computation
from staticgraph.steps.finite import FiniteLosses
from staticgraph.steps.graph_trees import drop_recordings, whole_recording
from staticgraph.steps.modes import FUSED, OWN, Mode
from staticgraph.steps.recordable_optimizer import check_recordable
from staticgraph.steps.single_rows import SingleRows
from staticgraph.steps.subject import Subject
from staticgraph.steps.training_state import evaluating, train
from staticgraph.steps.update import Update
from staticgraph.store.on_device import DeviceStore

PHASES = ("step", "eval", "forward")
# torch's graph trees run a function once to warm up, once to record, and replay from then on.
RECORDING_RUNS = 3


def _unwatched(_bucket: int, _phase: str) -> AbstractContextManager[None]:
    return nullcontext()


class Steps:
    """The ways of one runner.

    Args:
        subject: what is run.
        capacities: of the buckets.
        execution: how a bucket runs unless ``ways`` says otherwise, how steps are recorded, and
            with which ranks. Where ``fused`` may be among the ways, batches carry row pointers.

    Attributes:
        computation: forward, or forward and mean loss, of a batch.
        accumulated: gradients of batches that have not been followed by an update.
        finite: watches the losses of training steps.
        single_rows: watches their norms.
        mode: of a bucket, unless ``ways`` says otherwise.
        recording: as given, or with the scope that :meth:`fit_scope` found.
        ways: the chosen way of (bucket, phase), where there was a choice.
        recorded: the recordings, once there are any.
        store: a data set on the device, whose batches the recordings make from their ids.
        ranks: as given.
        averaging: the gradients of all ranks to one; None where there are none.
        preparing: entered around each preparation of a (bucket, phase), by who watches it.
        warmed: called between the runs that warm a key up and those whose memory is a step's; None
            where nobody measures.
    """

    def __init__(
        self,
        subject: Subject,
        capacities: Sequence[Capacity],
        execution: Execution,
    ) -> None:
        mode, ranks = execution.mode, execution.ranks
        self.ways: dict[tuple[int, str], str] = {}
        self.computation: Computation = Computation(subject)
        self.recording: Recording = execution.recording
        self.mode: Mode = mode
        self._way = mode.name
        self.recorded: RecordedSteps | None = None
        self.store: DeviceStore | None = None
        self.warmed: Callable[[], None] | None = None
        self.preparing: Callable[[int, str], AbstractContextManager[object]] = _unwatched
        compiled_mode = mode if mode.compiled else Mode("default", "chosen by time")
        self._subject = subject
        self._model = subject.model
        self._device = subject.device
        self._pointers = subject.pointers
        self._tries_fused = execution.tries_fused
        self._may_rewrite = execution.tries_fused or mode.fused or self.computation.context.kernels
        self._update = Update(subject)
        self.accumulated: Accumulation = Accumulation(subject)
        self._capacities = capacities
        self.compiled: CompiledSteps = CompiledSteps(self._model, self.computation, compiled_mode)
        self.finite: FiniteLosses = FiniteLosses(capacities, self._device, subject.check_finite)
        self.single_rows: SingleRows = SingleRows(self._model)
        self._recorded_whole: set[tuple[str, int, str]] = set()
        self.ranks: Ranks | None = ranks
        self.averaging: Averaging | None = None if ranks is None else Averaging(subject, ranks)
        self.computation.shared = ranks is not None
        if ranks is not None and not ranks.can_record(self._device) and self.scope == "step":
            self.recording = replace(execution.recording, scope="forward_backward")

    @property
    def joins_collation(self) -> bool:
        """Whether training steps are also recorded together with the making of their batches."""
        recording = self.recording
        return self.store is not None and recording.one_launch and recording.scope != "forward"

    @property
    def scope(self) -> Scope:
        """What the recording of a training step holds."""
        return self.recording.scope

    # ------------------------------------------------------------------ running

    def accept(self, batch: StaticBatch) -> StaticBatch:
        """A batch as the steps take it: with pointers if the model reads them, else without.

        Raises:
            TypeError: it is no batch of fixed shape.
            ValueError: it belongs to no bucket of these, is on another device than the model, or
                lacks the pointers.
        """
        if not isinstance(batch, StaticBatch):
            raise TypeError(
                f"a step takes a StaticBatch, as StaticLoader(store, plan) gives them, not a "
                f"{type(batch).__name__}; runner.predict(graphs) takes a list of Data"
            )
        if self.computation.newcomers.came:
            self.computation.settle()
        layout, bucket = batch.layout, batch.bucket
        known = self._capacities[bucket] if bucket < len(self._capacities) else None
        if layout.capacity is not known and layout.capacity != known:
            raise ValueError(
                f"the batch belongs to bucket {bucket} of {layout.capacity}, which is not in "
                "this runner's plan: give the loader and the runner the same plan"
            )
        if batch.device.type != self._device.type:
            raise ValueError(
                f"the batch is on {batch.device}, the model on {self._device}: pass "
                f"StaticLoader(..., device={str(self._device)!r}), or batch.to(...); a model is "
                "moved before its runner is made"
            )
        if self._pointers is layout.pointers and (self._pointers or not self._may_rewrite):
            return with_pointers(batch) if self._pointers else batch
        if self._pointers:
            raise ValueError(
                "the model was converted with kernels=True, which read row pointers, but the batch "
                "carries none: make it with StaticLoader(..., pointers=True), or with "
                "StaticBatch.of(..., pointers=True)"
            )
        return self._as_way_takes(batch)

    def _as_way_takes(self, batch: StaticBatch) -> StaticBatch:
        """A batch of a model none of whose layers reads pointers: a rewritten step does."""
        if not self.rewrites or batch.layout.schema.hetero:
            # A compiled step has the arrays it was made for.
            return batch.without_pointers()
        return with_pointers(batch)

    @property
    def rewrites(self) -> bool:
        """Whether any way that is run here is rewritten to this library's operators."""
        fused = self.mode.fused or FUSED in self.ways.values()
        return fused or self.computation.context.kernels

    def run(self, work: str, batch: StaticBatch, way: str | None = None) -> Any:
        """The output for work ``forward``, the mean loss for ``step``."""
        phase = work
        if work == "forward" and not self._model.training and not torch.is_grad_enabled():
            phase = "eval"
        way = way or self.ways.get((batch.bucket, phase), self._way)
        if way == OWN and self.records(phase):
            return self._replayed(work, batch, phase == "forward")
        if way != "eager":
            self.computation.check_not_single(batch)
            return self.compiled.run(work, batch, way == FUSED)
        with self.computation.active():
            return self.computation.run(work, batch)

    def _replayed(self, work: str, batch: StaticBatch, gradients: bool = False) -> Any:
        """A recording's result. Most batches have no level with a single row: nothing to ask."""
        real = batch.real
        if real is not None and (1 in real or real.extra):
            self.computation.check_not_single(batch)
        if self.recorded is None:
            self._recordings(batch.layout.schema, late=True)
        assert self.recorded is not None
        return self.recorded.forward(batch) if gradients else self.recorded.run(work, batch)

    def train(self, batch: StaticBatch, way: str | None = None) -> Tensor:
        """One training step: gradients to zero, forward, loss, backward; the update, where enough
        batches are together.

        Returns:
            The mean loss, 0-dim, detached.
        """
        if not self._model.training:
            train(self._model)
        if batch.real is None:
            self.single_rows.note(batch, self.computation.known(batch))
        way = way or self.ways.get((batch.bucket, "step"), self._way)
        if way == OWN and (scope := self.recording.scope) != "forward":
            loss = self._replayed("step", batch)
            if scope != "step":
                if self.averaging is not None:
                    loss = self._averaged(loss, batch)
                if self.accumulated.add():
                    self._update()
            return loss
        self._update.zero_grad()
        if way == "eager":
            with self.computation.active():
                loss = self._backward(self.computation.run("step", batch, keep=True), batch)
        else:
            loss = self._backward(self.run("step", batch, way), batch)
        if self.accumulated.add():
            self._update()
        return loss.detach().clone() if self.mode.recording else loss.detach()

    def count(self) -> None:
        """One more training step is done; what it flagged is read where it is time.

        Raises:
            NonFiniteLoss: as :meth:`check`.
        """
        if self.finite.count():
            self.single_rows.check()

    def check(self) -> None:
        """Waits for the device and reads what the steps so far have flagged.

        Raises:
            NonFiniteLoss: a loss was NaN or infinite.
        """
        self.single_rows.check()
        self.finite.check()

    def clear(self) -> None:
        """Takes back what was flagged."""
        self.single_rows.clear()
        self.finite.clear()

    def _backward(self, result: Any, batch: StaticBatch) -> Tensor:
        """From what a step computed to gradients, over all ranks where they are several; returns
        the mean loss."""
        if self.averaging is None:
            self.finite.before_update(result, batch)
            result.backward()
            return result
        result.total.backward()
        return self._averaged(result, batch)

    def _averaged(self, share: Share, batch: StaticBatch) -> Tensor:
        assert self.averaging is not None
        loss = self.averaging(share, batch)
        self.averaging.check(loss, batch, self.finite)
        return loss

    def records(self, phase: str) -> bool:
        """Whether a phase is replayed where the way is to record: its scope says."""
        return phase == "eval" or self.scope != "forward"

    # ------------------------------------------------------------------ making ready

    def fingerprint(self) -> dict[str, Any]:
        """What a choice among the ways depends on: values that JSON keeps."""
        on_cuda = self._device.type == "cuda"
        name = torch.cuda.get_device_name(self._device) if on_cuda else self._device.type
        return {
            "device": name,
            "torch": torch.__version__,
            "model": type(self._model).__name__,
            "parameters": sum(p.numel() for p in self._model.parameters()),
            "optimizer": type(self._update.optimizer).__name__,
            "autocast": self._subject.precision,
            "capacities": [str(capacity) for capacity in self._capacities],
        }

    def fit_scope(self) -> list[str]:
        """Takes the optimizer out of the recordings where it cannot be inside; says why."""
        if self.scope != "step" or self._update.optimizer is None:
            return []
        try:
            check_recordable(self._update.optimizer)
        except NotStatic as error:
            self.recording = replace(self.recording, scope="forward_backward")
            return [f"recordings end at the gradients (scope='forward_backward'): {error}"]
        return []

    def layout(self, bucket: int, schema: Schema) -> SlotLayout:
        """The arrays of a bucket's batches."""
        reads = self.rewrites or self._tries_fused
        pointers = self._pointers or (reads and not schema.hetero)
        return SlotLayout(bucket, self._capacities[bucket], schema, pointers)

    def prepare(self, way: str, bucket: int, phase: str, schema: Schema) -> None:
        """Compiles, or records, what a phase of a bucket needs; nothing for ``eager``.

        Raises:
            NotStatic: it cannot be compiled or recorded.
            ValueError: no such phase.
        """
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}; choose of {', '.join(map(repr, PHASES))}")
        work = "step" if phase == "step" else "forward"
        if way == "eager":
            return
        if way == OWN and self.records(phase):
            if self.averaging is not None and phase == "step":
                self.averaging.check_recordable()
            if phase == "forward":
                self._recordings(schema).record_forward(bucket, training=True)
            else:
                self._recordings(schema).record(bucket, work, self.warmed)
            return
        batch = StaticBatch.blank(self.layout(bucket, schema), self._device)
        key = (way, bucket, phase)
        if self.mode.recording and key not in self._recorded_whole:
            with whole_recording(self._device, phase, f"bucket {bucket} {phase}") as found:
                self._run_in(way, batch, phase, RECORDING_RUNS)
            self.compiled.note_recorded(bucket, work, phase != "eval", found)
            self._recorded_whole.add(key)
        else:
            self._run_in(way, batch, phase, RECORDING_RUNS if self.mode.recording else 1)

    def _run_in(self, way: str, batch: StaticBatch, phase: str, runs: int) -> None:
        """Runs a phase of a batch, so that it compiles, and where torch records, records."""
        work = "step" if phase == "step" else "forward"
        for turn in range(runs if self.warmed is None else max(runs, 2)):
            if turn == 1 and self.warmed is not None:
                if phase == "step":
                    self._update.zero_grad()  # a step makes its own
                self.warmed()
            if phase == "eval":
                with evaluating(self._model):
                    self.run(work, batch, way)
                continue
            train(self._model)
            result = self.run(work, batch, way)
            if phase == "step":
                with without_callbacks(self._model, self._update.optimizer):
                    (result if self.averaging is None else result.total).backward()

    def _recordings(self, schema: Schema, late: bool = False) -> RecordedSteps:
        """The recordings, made now where there are none; ``late`` where batches come already."""
        if self.recorded is None:
            self.recorded = RecordedSteps(
                self._subject,
                self.computation,
                self.compiled,
                self._update,
                self.recording,
                self.finite if self.finite.watches else None,
                late,
                self.averaging,
            )
            self.recorded.prepare([self.layout(b, schema) for b in range(len(self._capacities))])
            if self.store is not None:
                self.recorded.collate_from(self.store)
        return self.recorded

    # ------------------------------------------------------------------ ending

    def finish(self) -> None:
        """From now on nothing is recorded, and what compiles is warned of."""
        self.compiled.warmed_up = True
        if self.recorded is not None:
            self.recorded.freeze()

    def close(self) -> None:
        """Frees the recordings, all together."""
        if self.recorded is not None:
            self.recorded.close()
            self.recorded = None

    def tear_down(self) -> None:
        """Frees recordings and compiled functions, torch's graph trees included."""
        self.close()
        self.compiled.clear()
        self._recorded_whole.clear()
        if self.mode.recording:
            drop_recordings(self._device)
