"""A few cases of every subject of ``tests/fuzz``, the same each time; ``python -m tests.fuzz`` runs
as many as time allows."""

from __future__ import annotations

import os
import signal
import time

import pytest
from fuzz import rounds
from fuzz.rounds import run_round
from fuzz.subject import Subject
from fuzz.subjects import SUBJECTS
from hypothesis import strategies as st

EVERY_CASE = bool(os.environ.get("EVERY_CASE"))


# The compiled subject takes long per case; `make fuzz` runs some of its cases every time.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "compiled"])
def test_a_round_of_cases(name):
    count = SUBJECTS[name].examples
    SUBJECTS[name].round(seed=2, examples=count if EVERY_CASE else count // 2)


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


@pytest.mark.parametrize("computing", [True, False])
def test_a_case_without_an_end_is_a_finding(computing, monkeypatch):
    """Detected by processor time if it computes, by the clock if it waits."""
    monkeypatch.setattr(rounds, "PATIENCE_S", 0.3 if computing else 1e9)
    monkeypatch.setattr(rounds, "WAITING_S", 1e9 if computing else 0.3)

    def endless(case: int) -> None:
        while True:
            time.sleep(0 if computing else 1)

    found = run_round(Subject("endless", lambda: st.just(41), endless, 1), 7)
    assert found.what == "no end in 41"
