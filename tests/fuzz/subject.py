"""A fuzzing subject: the source of its cases and the check that each must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True)
class Subject:
    """A strategy and a check.

    Attributes:
        name: its name on the command line.
        cases: makes the strategy; a function, since some strategies need data on disk.
        check: raises if a case shows a fault.
        examples: cases per round, enough for a few seconds. If 1, the minimal case, which
            Hypothesis generates first whatever the seed, is skipped.
    """

    name: str
    cases: Callable[[], SearchStrategy[Any]]
    check: Callable[[Any], None]
    examples: int

    def round(
        self,
        seed: int,
        examples: int | None = None,
        before: Callable[[Any], bool] = lambda case: True,
    ) -> None:
        """Runs the cases of one seed; raises the error of the smallest failing case.

        Args:
            seed: of the cases.
            examples: the number of cases; by default that of the subject.
            before: called with every case before its check; False skips the case.
        """

        failed = False  # once True, no case is skipped, or the failure would not reproduce
        count = examples or self.examples
        alone = count == 1
        left_out: list[Any] = []

        @hypothesis.seed(seed)
        @settings(
            max_examples=count + alone,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @hypothesis.given(self.cases())
        def all_cases(case: Any) -> None:
            nonlocal failed, alone
            if alone and not left_out:
                left_out.append(case)
                return
            alone = False
            if before(case) or failed:
                try:
                    self.check(case)
                except BaseException:
                    failed = True
                    raise

        all_cases()
        if alone and before(left_out[0]):  # the only case there is
            self.check(left_out[0])
