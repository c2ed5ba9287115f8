"""One step of one bucket, run in one of three ways: eager, compiled, or replayed.

All of them compute the same. The runner's mode decides which way a bucket takes or, with ``auto``,
the result of :mod:`staticgraph.runner.trials`; nothing else in the library knows of the
choice.

A *phase* is what a call is for (``step``; ``eval``: without gradients in evaluation mode;
``forward``: any other call); the *work* is what a function computes for it (``step``: forward and
mean loss; ``forward``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import UNPLANNED, SlotLayout
from staticgraph.distributed.ranks import Ranks
from staticgraph.distributed.reduction import Share
from staticgraph.errors import NotStatic
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recorded_steps import MISSED, RecordedSteps
from staticgraph.recording.recorded_work import RecordedWork
from staticgraph.recording.recording_keys import Recording
from staticgraph.runner.ways import Execution
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.compiled_steps import CompiledSteps
from staticgraph.steps.compilation.modes import FUSED, OWN, Mode
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.rank_averaging import Averaging
from staticgraph.steps.state.recordable_optimizer import check_recordable
from staticgraph.steps.state.training_state import evaluating, train, untouched
from staticgraph.steps.update import Accumulation, StepState, Update
from staticgraph.store.on_device import DeviceStore


class Steps:
    """Runs the batches of one runner, each in its bucket's way.

    Args:
        subject: the model, and how it is run.
        plan: the buckets.
        execution: how a bucket runs unless ``ways`` says otherwise, how steps are recorded, and
            with which ranks. Where ``fused`` may be among the ways, batches carry row pointers.

    Attributes:
        computation: computes the forward, or forward and mean loss, of a batch.
        plan: the buckets, one capacity each.
        execution: as settled at first.
        fused: whether a way in use is rewritten to this library's operators.
        compiled: the compiled functions.
        recording: how, and how much, is recorded: as given, or with the smaller scope that the
            optimizer or the ranks allow.
        recorded: the recorded steps, once there are any. They are made together when the first is
            needed, and freed together, since they share their memory.
        store: a dataset on the device, whose batches the recordings make from graph ids.
        accumulated: the gradients of batches that no update has followed yet.
        update: what follows a backward.
        finite: watches the losses of training steps, and norms over a single row.
        subject: the model, and how it is run.
        mode: the mode of a bucket, unless ``ways`` says otherwise.
        ways: the chosen way of each (bucket, phase) for which one was chosen.
        ranks: those of the execution.
        averaging: averages the gradients over all ranks; None without ranks.
    """

    def __init__(
        self,
        subject: Subject,
        plan: BucketPlan,
        execution: Execution,
    ) -> None:
        self.plan: BucketPlan = plan
        self.execution: Execution = execution
        mode, ranks = execution.mode, execution.ranks
        compiled_mode = mode if mode.compiled else Mode("default", "chosen by time")
        model = self._model = subject.model
        self.subject: Subject = subject
        self._device, self._pointers = subject.device, subject.pointers
        self.update: Update = Update(subject)
        self._state = StepState(model, subject.functions)
        self.mode: Mode = mode
        self._way = mode.name
        self._copies_loss = mode.recording  # torch's graph trees write it to one address
        self.ways: dict[tuple[int, str], str] = {}
        self.computation: Computation = Computation(subject, plan.capacities)
        self.computation.shared = ranks is not None
        self.fused: bool = mode.fused
        self._may_rewrite = execution.tries_fused or self.fused or self.computation.context.kernels
        self.compiled: CompiledSteps = CompiledSteps(
            model, self.computation, compiled_mode, len(plan.capacities)
        )
        self.accumulated: Accumulation = Accumulation(subject)
        self.finite: FiniteLosses = FiniteLosses(
            plan.capacities, subject.device, subject.check_finite, model
        )
        self._every, self._counted = subject.check_finite, 0
        self.ranks: Ranks | None = ranks
        self.averaging: Averaging | None = None if ranks is None else Averaging(subject, ranks)
        self.recording: Recording = execution.recording
        self.recorded: RecordedSteps | None = None
        self.store: DeviceStore | None = None
        records_sums = ranks is None or ranks.can_record(subject.device)
        if self.recording.scope == "step" and not records_sums:
            self.recording = replace(self.recording, scope="forward_backward")

    # ------------------------------------------------------------------ batches

    @property
    def rewrites(self) -> bool:
        """Whether any way that runs here is rewritten to this library's operators."""
        return self.fused or self.computation.context.kernels

    def layout(self, bucket: int, schema: Schema) -> SlotLayout:
        """The layout of a bucket's batches."""
        reads = self.rewrites or self.execution.tries_fused
        pointers = self._pointers or (reads and schema.has_pointers)
        return SlotLayout(bucket, self.plan.capacities[bucket], schema, pointers)

    def accept(self, batch: StaticBatch) -> StaticBatch:
        """Returns a batch as the steps take it: with row pointers only if they are read.

        A step that is rewritten to this library's kernels reads them; any other compiled step must
        not be given more arrays than it was compiled for.

        Raises:
            TypeError: the batch is not a :class:`StaticBatch`.
            ValueError: the batch belongs to none of these buckets, or is on another device than
                the model.
        """
        if not isinstance(batch, StaticBatch):
            raise TypeError(
                "a step takes PyG's Batch, a list of Data, or a StaticBatch, as a StaticLoader and "
                f"sg.Padder(plan, schema=...) give them, not a {type(batch).__name__}"
            )
        if self.computation.newcomers.came:
            self.computation.settle()
        layout, bucket = batch.layout, batch.bucket
        capacities = self.plan.capacities
        capacity = capacities[bucket] if bucket < len(capacities) else None
        if layout.capacity is not capacity and layout.capacity != capacity and bucket != UNPLANNED:
            raise ValueError(
                f"the batch belongs to bucket {bucket} of {layout.capacity}, which is not in "
                "this runner's plan: give the loader and the runner the same plan, and to a runner "
                "of padded batches the padder, StaticGraphRunner(model, padder), whose buckets "
                "grow by what the fields need"
            )
        if batch.device.type != self._device.type:
            raise ValueError(
                f"the batch is on {batch.device}, the model on {self._device}: pass "
                f"StaticLoader(..., device={str(self._device)!r}), or batch.to(...); a model is "
                "moved before its runner is made"
            )
        if self._pointers:
            return with_pointers(batch)
        if not layout.pointers and not self._may_rewrite:
            return batch
        if self.rewrites and layout.schema.has_pointers:
            return with_pointers(batch)
        # A compiled step takes exactly the arrays that it was compiled with.
        return batch.without_pointers()

    # ------------------------------------------------------------------ recordings

    @property
    def joins_collation(self) -> bool:
        """Whether training steps are also recorded together with the collation of their batches."""
        recording = self.recording
        return self.store is not None and recording.one_launch and recording.scope != "forward"

    def records(self, phase: str) -> bool:
        """Whether a phase is replayed in a bucket whose way is to record; the scope decides."""
        return phase == "eval" or self.recording.scope != "forward"

    def fit_scope(self) -> list[str]:
        """Takes the optimizer out of the recordings if it cannot be recorded; returns why."""
        if self.recording.scope != "step" or self.subject.optimizer is None:
            return []
        try:
            check_recordable(self.subject.optimizer)
        except NotStatic as error:
            self.recording = replace(self.recording, scope="forward_backward")
            return [f"recordings end at the gradients (scope='forward_backward'): {error}"]
        return []

    def begin_recording(self, schema: Schema) -> RecordedSteps:
        """Returns the recorded steps, making them first if there are none."""
        if self.recorded is None:
            work = RecordedWork(
                self.computation,
                self.compiled,
                self.update,
                self.recording.scope,
                self.finite,
                self.averaging,
            )
            layouts = [self.layout(b, schema) for b in range(len(self.plan.capacities))]
            self.recorded = RecordedSteps(self.subject, work, self.recording, layouts, self.store)
        return self.recorded

    def untouched(self) -> AbstractContextManager[None]:
        """A ``with`` block after which the model, and all else that a step writes, is restored."""
        subject, attributes = self.subject, not self.execution.records
        return untouched(
            subject.model, subject.optimizer, beside=subject.functions, attributes=attributes
        )

    def close(self) -> None:
        """Frees the recordings, all together."""
        if self.recorded is not None:
            self.recorded.close()
            self.recorded = None

    # ------------------------------------------------------------------ running

    def grow(self, capacities: tuple[Capacity, ...]) -> None:
        """Takes other capacities, of which only the last is new."""
        bucket = len(capacities) - 1
        self.plan = replace(self.plan, capacities=capacities)
        self.finite.grow(capacities)
        self.compiled.forget(bucket)
        self.ways = {key: way for key, way in self.ways.items() if key[0] != bucket}

    def choose(self, ways: dict[tuple[int, str], str]) -> None:
        """Makes each (bucket, phase) run in its own, already prepared, way from now on."""
        self.ways = ways
        self.fused = self.mode.fused or FUSED in ways.values()

    def way_of(self, bucket: int, phase: str) -> str:
        """Returns the way in which a phase of a bucket runs."""
        return "eager" if bucket == UNPLANNED else self.ways.get((bucket, phase), self._way)

    def phase(self, work: str) -> str:
        """Returns the phase of some work that is called now."""
        evaluates = not self._model.training and not torch.is_grad_enabled()
        return "eval" if work == "forward" and evaluates else work

    def run(self, work: str, batch: StaticBatch, way: str | None = None) -> Any:
        """Returns the output for work ``forward``, the mean loss for ``step``."""
        phase = self.phase(work)
        way = way or self.way_of(batch.bucket, phase)
        if way == OWN and self.records(phase):
            result = self._replayed(work, batch, phase == "forward")
            if result is not MISSED:
                return result
            way = "eager"
        if way != "eager":
            self.computation.check_not_single(batch)
            return self.compiled.run(work, batch, way == FUSED)
        with self.computation.active():
            return self.computation.run(work, batch)

    def run_phase(self, phase: str, batch: StaticBatch, way: str) -> Any:
        """Returns the result of a phase: of ``eval`` in evaluation mode, else in training."""
        if phase == "eval":
            with evaluating(self._model):
                return self.run("forward", batch, way)
        train(self._model)
        return self.run("step" if phase == "step" else "forward", batch, way)

    def _replayed(self, work: str, batch: StaticBatch, gradients: bool = False) -> Any:
        """Replays a recording, after a check for single rows if the counts call for one; MISSED
        where there is none."""
        real = batch.real
        if real is not None and (1 in real or real.extra):
            self.computation.check_not_single(batch)
        recorded = self.recorded
        if recorded is None:
            recorded = self.begin_recording(batch.layout.schema)
        return recorded.forward(batch) if gradients else recorded.run(work, batch)

    def train(self, batch: StaticBatch, way: str | None = None) -> Tensor:
        """Runs one training step: zero gradients, forward, loss, backward, and the update if due.

        The update is due once enough batches have accumulated. If an eager or compiled step ends
        before its update, whatever it wrote is put back.

        Returns:
            The mean loss, 0-dim, detached.
        """
        if not self._model.training:
            self._model.train()
        if self.averaging is not None:
            self.averaging.begin(batch)
        way = way or self.way_of(batch.bucket, "step")
        if way == OWN and (scope := self.recording.scope) != "forward":
            loss = self._replayed("step", batch)
            if loss is not MISSED:
                if scope != "step":
                    if self.averaging is not None:
                        loss = self._averaged(loss, batch)
                    if self.accumulated.add():
                        self.update()
                return loss
            way = "eager"
        with self._state:
            self.update.zero_grad()
            if way == "eager":
                with self.computation.active():
                    loss = self._backward(self.computation.run("step", batch, keep=True), batch)
            else:
                loss = self._backward(self.run("step", batch, way), batch)
        if self.accumulated.add():
            self.update()
        return loss.detach().clone() if self._copies_loss else loss.detach()

    def train_parts(self, parts: Sequence[StaticBatch]) -> Tensor:
        """Runs one training step over parts of one bucket, in eager: the mean over the rows of all.

        Returns:
            The mean loss, 0-dim, detached.

        Raises:
            ValueError: several ranks train, or the loss adds the mean of other rows.
        """
        if self.averaging is not None:
            raise ValueError(
                "a split batch is one step of several parts, and other ranks would wait for each "
                "of them: use overflow='grow' where several processes train"
            )
        total = weight = torch.zeros((), device=parts[0].device)
        self.computation.shared = True
        try:
            with self._state:
                self.update.zero_grad()
                for part in parts:
                    with self.computation.active():
                        share = self.computation.run("step", part, keep=True)
                        if share.rows is not None:
                            raise ValueError(
                                "the loss adds the mean of other rows, which a batch in parts "
                                "cannot weight: use overflow='grow'"
                            )
                        self.finite.before_update(share.total.detach(), part)
                        share.total.backward()
                    total, weight = total + share.total.detach(), weight + share.weight.detach()
                weight = torch.where(weight == 0, 1, weight)
                for parameter in self.subject.parameters():
                    if parameter.grad is not None:
                        parameter.grad.div_(weight)
        finally:
            self.computation.shared = False
        if self.accumulated.add():
            self.update()
        return (total / weight).detach()

    def count(self) -> None:
        """Counts one finished training step; reads the flags of earlier steps when that is due.

        Raises:
            NonFiniteLoss: a loss was NaN or infinite.
        """
        self._counted += 1
        if self._every and self._counted % self._every == 0:
            self.finite.check()

    def _backward(self, result: Any, batch: StaticBatch) -> Tensor:
        """Computes the gradients, averaged over the ranks if several; returns the mean loss.

        Raises:
            ValueError: the loss has no gradient.
        """
        if self.averaging is None:
            if not result.requires_grad:
                raise ValueError(
                    "the loss depends on nothing that is trained: look for detach(), no_grad(), "
                    "item() and comparisons on its way, and for parameters with "
                    "requires_grad=False"
                )
            self.finite.before_update(result, batch)
            result.backward()
            return result
        result = self.averaging.join_rows(result)
        result.total.backward()
        return self._averaged(result, batch)

    def _averaged(self, share: Share, batch: StaticBatch) -> Tensor:
        assert self.averaging is not None
        loss = self.averaging(share, batch)
        self.averaging.check(loss, batch, self.finite)
        return loss
