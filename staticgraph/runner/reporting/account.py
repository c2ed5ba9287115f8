"""What a runner has done so far: batches and times per bucket, and the bytes that it holds.

The runner counts each batch in the statistics of its bucket; everything else is read from its
owners when a report is requested. Nothing here makes decisions.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.files.versions import STEPS, versions
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.execution.commitments import Commitments, RunnerStats
from staticgraph.runner.execution.steps import Steps
from staticgraph.runner.reporting.bucket_statistics import BucketStatistics
from staticgraph.runner.reporting.device_name import device_name
from staticgraph.runner.reporting.report import BucketReport, Report
from staticgraph.runner.warmup.warmup import Warming
from staticgraph.steps.attention_choices import attention_choices
from staticgraph.steps.attention_row import AttentionRow
from staticgraph.steps.compilation.compiled_function import skipped_recordings_of
from staticgraph.steps.compilation.modes import Mode
from staticgraph.steps.computation.model_setup import Subject


class Account:
    """The account of one runner.

    Args:
        subject: the model that it runs, and how.
        plan: its buckets.
        mode: its mode, resolved.
        steps: its steps, which count what they compile and replay.
        warming: its warm-up, which keeps the choices and notes.
        commitments: its memory ledger; None without a budget.

    Attributes:
        statistics: one per bucket.
    """

    def __init__(
        self,
        subject: Subject,
        plan: BucketPlan,
        mode: Mode,
        steps: Steps,
        warming: Warming,
        commitments: Commitments | None,
    ) -> None:
        self.statistics: list[BucketStatistics] = [
            BucketStatistics(c, subject.device) for c in plan.capacities
        ]
        self._subject, self._plan, self._mode = subject, plan, mode
        self._steps, self._warming, self._commitments = steps, warming, commitments

    @property
    def stats(self) -> RunnerStats:
        """The bytes held, as predicted."""
        return RunnerStats() if self._commitments is None else self._commitments.stats

    def report(self) -> Report:
        """Returns the whole account, in plain values."""
        warming, recorded = self._warming, self._steps.recordings.made
        return Report(
            model=type(self._subject.model).__name__,
            device=device_name(self._subject.device),
            mode="auto" if warming.choices else self._mode.name,
            mode_reason="chosen by time, see below" if warming.choices else self._mode.reason,
            autocast=self._subject.precision,
            warmup_s=warming.seconds,
            warm_start=warming.cold_s is not None,
            cold_start_s=warming.cold_s,
            replays={str(key): n for key, n in (recorded.counts if recorded else {}).items()},
            buckets=tuple(map(self._bucket, range(len(self.statistics)))),
            fallbacks=self._fallbacks(),
            versions=versions(STEPS),
            choices=warming.choices,
            attention=self._attention(),
            optional=self._steps.computation.optional or (),
        )

    @property
    def fallbacks(self) -> int:
        """How many steps run in another way than was chosen for them."""
        return len(self._fallbacks())

    def _fallbacks(self) -> tuple[str, ...]:
        recorded = self._steps.recordings.made
        skipped = skipped_recordings_of(self._steps.compiled.counts)
        return (*self._warming.notes, *skipped, *(recorded.missed() if recorded else ()))

    def _bucket(self, bucket: int) -> BucketReport:
        steps, recorded = self._steps, self._steps.recordings.made
        compiled = [count for key, count in steps.compiled.counts if key.bucket == bucket]
        own = sum(key.bucket == bucket for key in (recorded.counts if recorded else ()))
        late = steps.compiled.late[bucket]
        bytes_of = self._commitments.of_bucket(bucket) if self._commitments else {}
        return replace(self.statistics[bucket].report(bucket, compiled, own, late), **bytes_of)

    def _attention(self) -> tuple[AttentionRow, ...]:
        return attention_choices(
            self._subject.model,
            self._plan.capacities,
            device=self._subject.device,
            dtype=self._subject.autocast,
            training=self._subject.optimizer is not None,
        )
