"""A few cases of every subject of ``tests/fuzz``, the same each time; ``python -m tests.fuzz`` runs
as many as there is time for."""

from __future__ import annotations

import os
import signal

import pytest
from fuzz.rounds import run_for, run_round, seeds_of
from fuzz.subject import Subject
from fuzz.subjects import SUBJECTS
from hypothesis import strategies as st


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_few_cases(name):
    SUBJECTS[name].round(seed=1, examples=4)


def failing(case: int) -> None:
    if case > 40:
        raise ValueError(f"{case} is too many")


NUMBERS = Subject("numbers", lambda: st.integers(0, 100), failing, 50)


def test_a_round_is_the_same_again_and_names_its_smallest_case():
    found = run_round(NUMBERS, 7)
    assert found == run_round(NUMBERS, 7)
    assert found.what == "ValueError: 41 is too many"
    assert "case=41" in found.finding


def test_a_crash_is_a_finding():
    def crash(case: int) -> None:
        if case > 40:
            os.kill(os.getpid(), signal.SIGSEGV)

    found = run_round(Subject("crash", lambda: st.integers(0, 100), crash, 50), 7)
    assert found.what.startswith("signal 11 in ")


def test_the_seed_decides_which_rounds_there_are():
    rounds = []
    always = Subject("numbers", lambda: st.just(41), failing, 1)
    found = run_for([always], 1.0, 3, lambda result, first: rounds.append((result.seed, first)))
    wanted = seeds_of("numbers", 3)
    assert [seed for seed, _ in rounds] == [next(wanted) for _ in rounds]
    assert rounds[0][1]
    assert not any(first for _, first in rounds[1:]), "a finding is told once"
    assert [result.what for result in found] == ["ValueError: 41 is too many"]
