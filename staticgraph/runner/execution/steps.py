"""One step of one bucket, run in one of three ways: eager, compiled, or replayed.

All of them compute the same. The runner's mode decides which way a bucket takes or, with ``auto``,
the result of :mod:`staticgraph.runner.warmup.trials`; nothing else in the library knows of the
choice.

A *phase* is what a call is for (``step``; ``eval``: without gradients in evaluation mode;
``forward``: any other call); the *work* is what a function computes for it (``step``: forward and
mean loss; ``forward``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.distributed.share import Share
from staticgraph.runner.execution.batch_form import BatchForm
from staticgraph.runner.execution.execution import Execution
from staticgraph.runner.execution.recordings import Recordings
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.compiled_steps import CompiledSteps
from staticgraph.steps.compilation.modes import FUSED, OWN, Mode
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.rows.single_row_norms import SingleRows
from staticgraph.steps.state.training_state import StepState, train
from staticgraph.steps.update.gradient_accumulation import Accumulation
from staticgraph.steps.update.rank_averaging import Averaging
from staticgraph.steps.update.update import Update


class Steps:
    """Runs the batches of one runner, each in its bucket's way.

    Args:
        subject: the model, and how it is run.
        capacities: one per bucket.
        execution: how a bucket runs unless ``ways`` says otherwise, how steps are recorded, and
            with which ranks. Where ``fused`` may be among the ways, batches carry row pointers.

    Attributes:
        computation: computes the forward, or forward and mean loss, of a batch.
        form: what a batch must be, and how the steps take it.
        compiled: the compiled functions.
        recordings: the recorded steps.
        accumulated: the gradients of batches that no update has followed yet.
        finite: watches the losses of training steps.
        single_rows: watches the norms for batches with a single row.
        subject: the model, and how it is run.
        mode: the mode of a bucket, unless ``ways`` says otherwise.
        ways: the chosen way of each (bucket, phase) for which one was chosen.
        ranks: those of the execution.
        averaging: averages the gradients over all ranks; None without ranks.
    """

    def __init__(
        self,
        subject: Subject,
        capacities: Sequence[Capacity],
        execution: Execution,
    ) -> None:
        mode, ranks = execution.mode, execution.ranks
        compiled_mode = mode if mode.compiled else Mode("default", "chosen by time")
        model = self._model = subject.model
        self.subject: Subject = subject
        update = self._update = Update(subject)
        self._state = StepState(model, subject.functions)
        self.mode: Mode = mode
        self._way = mode.name
        self.ways: dict[tuple[int, str], str] = {}
        self.computation: Computation = Computation(subject)
        self.computation.shared = ranks is not None
        self.form: BatchForm = BatchForm(subject, self.computation, capacities, execution)
        self.compiled: CompiledSteps = CompiledSteps(model, self.computation, compiled_mode)
        self.accumulated: Accumulation = Accumulation(subject)
        self.finite: FiniteLosses = FiniteLosses(capacities, subject.device, subject.check_finite)
        self.single_rows: SingleRows = SingleRows(model)
        self.ranks: Ranks | None = ranks
        self.averaging: Averaging | None = None if ranks is None else Averaging(subject, ranks)
        self.recordings: Recordings = Recordings(
            subject,
            execution,
            self.form,
            computation=self.computation,
            compiled=self.compiled,
            update=update,
            finite=self.finite,
            averaging=self.averaging,
        )

    def grow(self, capacities: Sequence[Capacity]) -> None:
        """Takes other capacities, of which only the last is new."""
        bucket = len(capacities) - 1
        self.form.capacities = capacities
        self.finite.grow(capacities)
        self.compiled.forget(bucket)
        self.ways = {key: way for key, way in self.ways.items() if key[0] != bucket}

    def choose(self, ways: dict[tuple[int, str], str]) -> None:
        """Makes each (bucket, phase) run in its own, already prepared, way from now on."""
        self.ways = ways
        self.form.fused = self.mode.fused or FUSED in ways.values()

    def way_of(self, bucket: int, phase: str) -> str:
        """Returns the way in which a phase of a bucket runs."""
        return self.ways.get((bucket, phase), self._way)

    def phase(self, work: str) -> str:
        """Returns the phase of some work that is called now."""
        evaluates = not self._model.training and not torch.is_grad_enabled()
        return "eval" if work == "forward" and evaluates else work

    def run(self, work: str, batch: StaticBatch, way: str | None = None) -> Any:
        """Returns the output for work ``forward``, the mean loss for ``step``."""
        phase = self.phase(work)
        way = way or self.way_of(batch.bucket, phase)
        if way == OWN and self.recordings.records(phase):
            return self._replayed(work, batch, phase == "forward")
        if way != "eager":
            self.computation.check_not_single(batch)
            return self.compiled.run(work, batch, way == FUSED)
        with self.computation.active():
            return self.computation.run(work, batch)

    def _replayed(self, work: str, batch: StaticBatch, gradients: bool = False) -> Any:
        """Replays a recording, after a check for single rows if the counts call for one."""
        real = batch.real
        if real is not None and (1 in real or real.extra):
            self.computation.check_not_single(batch)
        recorded = self.recordings.made
        if recorded is None:
            recorded = self.recordings.of(batch.layout.schema)
        return recorded.forward(batch) if gradients else recorded.run(work, batch)

    def train(self, batch: StaticBatch, way: str | None = None) -> Tensor:
        """Runs one training step: zero gradients, forward, loss, backward, and the update if due.

        The update is due once enough batches have accumulated. If an eager or compiled step ends
        before its update, whatever it wrote is put back.

        Returns:
            The mean loss, 0-dim, detached.
        """
        if not self._model.training:
            train(self._model)
        if batch.real is None:
            self.single_rows.note(batch, self.computation.known(batch))
        if self.averaging is not None:
            self.averaging.begin(batch)
        way = way or self.way_of(batch.bucket, "step")
        if way == OWN and (scope := self.recordings.settings.scope) != "forward":
            loss = self._replayed("step", batch)
            if scope != "step":
                if self.averaging is not None:
                    loss = self._averaged(loss, batch)
                if self.accumulated.add():
                    self._update()
            return loss
        self._state.keep()
        try:
            self._update.zero_grad()
            if way == "eager":
                with self.computation.active():
                    loss = self._backward(self.computation.run("step", batch, keep=True), batch)
            else:
                loss = self._backward(self.run("step", batch, way), batch)
        except BaseException:  # a KeyboardInterrupt, too
            self._state.restore()
            raise
        if self.accumulated.add():
            self._update()
        return loss.detach().clone() if self.mode.recording else loss.detach()

    def count(self) -> None:
        """Counts one finished training step; reads the flags of earlier steps when that is due.

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
        """Discards the flags."""
        self.single_rows.clear()
        self.finite.clear()

    def _backward(self, result: Any, batch: StaticBatch) -> Tensor:
        """Computes the gradients, averaged over the ranks if several; returns the mean loss."""
        if self.averaging is None:
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
