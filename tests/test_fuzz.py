"""Random cases of every subject of ``tests/fuzz``, the same in every run.

``make fuzz`` draws others, and ``FUZZ_TIMES`` as many. Hypothesis prints the smallest case that
fails.
"""

from __future__ import annotations

import os

import pytest
from fuzz.subjects import SUBJECTS
from hypothesis import HealthCheck, Phase, given, settings

TIMES = float(os.environ.get("FUZZ_TIMES", "0.3"))
# Each of its cases runs the compiler, so only `make fuzz` runs some.
NAMES = [name for name in SUBJECTS if name != "compiled" or TIMES >= 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_random_cases(name):
    subject = SUBJECTS[name]

    @settings(
        max_examples=max(2, int(subject.examples * TIMES)),
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(subject.cases())
    def check(case):
        subject.check(case)

    check()
