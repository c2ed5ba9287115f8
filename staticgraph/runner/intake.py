"""Takes batches into a runner's steps: validates, commits and counts them, and checks padding.

Every call of a runner takes its batch in here, except the reference calls (``eager_step``,
``eager_forward``), which leave no trace in a report.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.padding_check import PaddingCheck
from staticgraph.runner.execution.commitments import Commitments
from staticgraph.runner.execution.steps import Steps
from staticgraph.runner.reporting.bucket_statistics import BucketStatistics
from staticgraph.runner.warmup.first_steps import FirstSteps
from staticgraph.runner.warmup.warmup import Warming


class Intake:
    """Takes in the batches of one runner.

    Args:
        steps: define what a batch must be.
        statistics: one per bucket; they count the batches.
        warming: knows whether the runner has been warmed up.
        commitments: the runner's memory ledger, which the bucket is entered in; None without a
            budget.
        padding: the padding check of the first batches; None where the user turned it off.
        first_steps: compares a bucket's first step with eager, unless ``padding`` is None.
    """

    def __init__(
        self,
        steps: Steps,
        statistics: Sequence[BucketStatistics],
        warming: Warming,
        commitments: Commitments | None,
        padding: PaddingCheck | None,
        first_steps: FirstSteps,
    ) -> None:
        self._steps, self._form = steps, steps.form
        self._statistics, self._warming = statistics, warming
        self._commitments, self._padding = commitments, padding
        self._first_steps = first_steps

    def take(self, batch: StaticBatch, work: str) -> StaticBatch:
        """Returns the batch as the steps take it.

        Args:
            batch: of a bucket of the plan.
            work: ``step`` or ``forward``.

        Raises:
            TypeError, ValueError: as
                :meth:`staticgraph.runner.execution.batch_form.BatchForm.accept`.
            PaddingLeaks: padding reaches real rows.
        """
        batch = self._form.accept(batch)
        if self._commitments is not None:
            self._commitments.use(batch.bucket)
        if batch.real is not None:
            self._statistics[batch.bucket].count(batch.real, work)
        recorded = self._recorded
        if self._padding is not None and not recorded and self._padding.wanted(work, batch):
            self._padding.of(batch, work)
        if self._warming.waits:
            batch = self._warming.choose_on(batch, work)
        compares = self._padding is not None and work == "step" and self._commitments is None
        if compares and not recorded:
            self._first_steps.compare(batch)
        return batch

    @property
    def _recorded(self) -> bool:
        """Whether there are recordings, next to which there is no memory for another step."""
        trees = self._steps.mode.recording and self._warming.seconds is not None
        return trees or self._steps.recordings.made is not None
