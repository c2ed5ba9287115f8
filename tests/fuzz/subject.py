"""What is fuzzed: where cases come from, and what must hold for each."""

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
        name: what the command line calls it.
        cases: made when first asked for, since some need data on disk.
        check: raises where a case shows a fault.
        examples: cases a round, some seconds' worth. Of a single one the smallest, with which
            Hypothesis begins whatever the seed, is left out.
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
        """Runs the cases of one seed; raises what the smallest failing one raises.

        Args:
            seed: which cases.
            examples: how many.
            before: told every case first; where it says False the case is left out.
        """

        failed = False  # from then on nothing is left out, or the failure would not come again
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
        if alone and before(left_out[0]):  # there is no other
            self.check(left_out[0])
