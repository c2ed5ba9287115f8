"""The recordings of one runner: how much of a step they hold, and when they are made and freed.

They are made together when the first is needed, and freed together, since they share their memory.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.errors import NotStatic
from staticgraph.recording.recorded import RecordedSteps
from staticgraph.recording.recording import Recording, Scope
from staticgraph.runner.execution.batch_form import BatchForm
from staticgraph.runner.execution.execution import Execution
from staticgraph.schema import Schema
from staticgraph.steps.compilation.compiled_steps import CompiledSteps
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.state.recordable_optimizer import check_recordable
from staticgraph.steps.update.rank_averaging import Averaging
from staticgraph.steps.update.update import Update
from staticgraph.store.on_device import DeviceStore


class Recordings:
    """The recordings of all buckets and phases.

    Args:
        subject: the model, and how it is run.
        execution: how steps are recorded, and with which ranks.
        form: what a batch must be.
        computation, compiled, update, finite, averaging: the parts of the recorded steps.

    Attributes:
        settings: as given, or with the smaller scope that the optimizer or the ranks allow.
        made: the recordings, once there are any.
        store: a dataset on the device, whose batches the recordings make from graph ids.
    """

    def __init__(
        self,
        subject: Subject,
        execution: Execution,
        form: BatchForm,
        *,
        computation: Computation,
        compiled: CompiledSteps,
        update: Update,
        finite: FiniteLosses,
        averaging: Averaging | None,
    ) -> None:
        self.settings: Recording = execution.recording
        self.made: RecordedSteps | None = None
        self.store: DeviceStore | None = None
        self._subject, self._form = subject, form
        self._computation, self._compiled, self._update = computation, compiled, update
        self._finite, self._averaging = finite, averaging
        ranks = execution.ranks
        if ranks is not None and not ranks.can_record(subject.device) and self.scope == "step":
            self.settings = replace(self.settings, scope="forward_backward")

    @property
    def joins_collation(self) -> bool:
        """Whether training steps are also recorded together with the collation of their batches."""
        settings = self.settings
        return self.store is not None and settings.one_launch and settings.scope != "forward"

    @property
    def scope(self) -> Scope:
        """What the recording of a training step holds."""
        return self.settings.scope

    def records(self, phase: str) -> bool:
        """Whether a phase is replayed in a bucket whose way is to record; the scope decides."""
        return phase == "eval" or self.scope != "forward"

    def fit_scope(self) -> list[str]:
        """Takes the optimizer out of the recordings if it cannot be recorded; returns why."""
        if self.scope != "step" or self._subject.optimizer is None:
            return []
        try:
            check_recordable(self._subject.optimizer)
        except NotStatic as error:
            self.settings = replace(self.settings, scope="forward_backward")
            return [f"recordings end at the gradients (scope='forward_backward'): {error}"]
        return []

    def of(self, schema: Schema) -> RecordedSteps:
        """Returns the recordings, making them first if necessary."""
        if self.made is None:
            self.made = RecordedSteps(
                self._subject,
                self._computation,
                self._compiled,
                self._update,
                self.settings,
                self._finite if self._finite.watches else None,
                self._averaging,
            )
            buckets = range(len(self._form.capacities))
            layouts = [self._form.layout(bucket, schema) for bucket in buckets]
            self.made.prepare(layouts)
            if self.store is not None:
                self.made.collate_from(self.store)
        return self.made

    def freeze(self) -> None:
        """Allows no further recording."""
        if self.made is not None:
            self.made.freeze()

    def close(self) -> None:
        """Frees the recordings, all together."""
        if self.made is not None:
            self.made.close()
            self.made = None
