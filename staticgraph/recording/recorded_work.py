"""What a recording records: the work of a key, as a function without arguments.

It reads the bucket's input slot and returns tensors. A ``step`` goes as far as its scope says: to
the gradients, or through the optimizer. The same work can run once in eager, for a batch whose key
has no recording.

The invariant: recorded work, and work run in eager instead, end in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.recording.even_update import EvenUpdate
from staticgraph.recording.recording import Scope
from staticgraph.steps.compilation.compiled_steps import CompiledSteps
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.update.rank_averaging import Averaging
from staticgraph.steps.update.update import Update


class RecordedWork:
    """The functions that a runner's recordings are made from.

    Args:
        computation: computes the forward, or forward and mean loss, of a batch.
        compiled: its functions are recorded if the recorder wants compiled ones.
        update: clipping and the optimizer, inside the recording for ``scope="step"``.
        scope: how much of a training step is recorded.
        finite: notes losses that are not finite, inside the recordings.
        averaging: averages over several ranks, inside the recordings for ``scope="step"``; with
            other scopes a step returns a ``Share``, still to be averaged.
    """

    def __init__(
        self,
        computation: Computation,
        compiled: CompiledSteps,
        update: Update,
        scope: Scope,
        finite: FiniteLosses | None,
        averaging: Averaging | None,
    ) -> None:
        self._computation = computation
        self._compiled = compiled
        self._update = update
        self._scope = scope
        self._finite = finite
        self._averaging = averaging

    def body(self, work: str, inputs: StaticBatch, compiles: bool) -> Callable[[], Any]:
        """Returns the function to record for some work.

        Args:
            work: ``forward``, without gradients, or ``step``.
            inputs: the batch over the bucket's input slot.
            compiles: whether to record the compiled functions or eager ones.
        """
        if work == "forward":

            def forward() -> Any:
                """Computes the output alone, without an autograd graph."""
                with torch.no_grad():
                    return self.computed(work, inputs, compiles)

            return forward

        def step() -> Any:
            """Computes forward, loss and as much of the update as is recorded."""
            self._update.zero_grad()
            result = self.computed(work, inputs, compiles)
            if self._averaging is not None:
                self._averaging.check_recordable(result)
            return self._trained(result, inputs)

        return step

    def computed(self, work: str, batch: StaticBatch, compiles: bool) -> Any:
        """Returns a batch's output or mean loss, with gradients if autograd is enabled."""
        if compiles:
            return self._compiled.run(work, batch)
        with self._computation.active():
            return self._computation.run(work, batch)

    def once(self, work: str, batch: StaticBatch) -> Any:
        """Does the work in eager, where there is no recording.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite; nothing was updated.
        """
        if work == "forward":
            with torch.no_grad():
                return self.computed(work, batch, compiles=False)
        self._update.zero_grad()
        loss = self.computed(work, batch, compiles=False)
        if self._averaging is not None:
            return self._trained(loss, batch)
        if self._finite is not None:
            self._finite.before_update(loss, batch)
        loss.backward()
        if self._scope == "step":
            self._update()
        return loss.detach()

    def _trained(self, result: Any, batch: StaticBatch) -> Any:
        """Continues from what a step computed as far as the scope goes.

        Returns:
            The mean loss, or the share of it that is still to be averaged.
        """
        if self._averaging is None:
            if self._finite is not None:
                self._finite.note(result.detach(), batch)
            result.backward()
            loss = result.detach()
        else:
            result = self._averaging.join_rows(result)
            result.total.backward()
            if self._scope != "step":
                return result.detach()
            loss = self._averaging(result, batch)
            if self._finite is not None:
                self._finite.note(loss, batch)
        if self._scope == "step":
            with EvenUpdate():
                self._update()
        return loss
