"""Rounds of a subject, each in a child process: an error, a signal or a hang is a finding."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .subject import Subject

# Seconds without a new case after which a round counts as hung: PATIENCE_S of CPU time, which does
# not depend on how busy the machine is, or WAITING_S of wall-clock time, for one that only waits.
PATIENCE_S = 120.0
WAITING_S = 900.0


@dataclass(frozen=True)
class Round:
    """The result of one round.

    Attributes:
        subject: the name of the subject.
        seed: of the cases; with the subject's name, enough to run them again.
        cases: the number of cases checked.
        finding: the failure and its case; empty if there was none.
    """

    subject: str
    seed: int
    cases: int
    finding: str = ""

    @property
    def what(self) -> str:
        """The first unindented line of the finding, which identifies its kind."""
        lines = [line for line in self.finding.splitlines() if line and line[0] not in " \t"]
        return lines[0] if lines else ""


def seeds_of(subject: str, seed: int) -> Iterator[int]:
    """The seeds of a subject's rounds, an endless sequence."""
    random = Random(f"{subject} {seed}")
    while True:
        yield random.getrandbits(32)


def run_round(subject: Subject, seed: int, until: float | None = None) -> Round:
    """Runs one round in a child process.

    Args:
        subject: the subject to run.
        seed: of the cases.
        until: a time on the ``time.monotonic`` clock; cases after the first that would start
            later are skipped.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz_round_") as scratch:
        notes = Path(scratch)
        for name in ("cases", "case", "finding", "trace"):
            (notes / name).touch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads
            child = os.fork()
        if child == 0:
            _in_child(subject, seed, until, notes)
        status = _wait(child, notes)
        finding = (notes / "finding").read_text()
        if status != 0 and not finding:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            how = "no end" if status == -signal.SIGKILL else how
            trace = (notes / "trace").read_text()
            finding = f"{how} in {(notes / 'case').read_text()}\n{trace}"
        return Round(subject.name, seed, (notes / "cases").stat().st_size, finding)


def _in_child(subject: Subject, seed: int, until: float | None, notes: Path) -> None:
    checked = 0

    def before(case: object) -> bool:
        nonlocal checked
        if checked and until is not None and time.monotonic() > until:
            return False
        checked += 1
        (notes / "case").write_text(repr(case))
        with (notes / "cases").open("ab") as counted:
            counted.write(b".")
        return True

    status = 0
    try:
        with (notes / "trace").open("w") as trace:
            faulthandler.enable(trace)
            subject.round(seed, before=before)
    except BaseException as error:  # an interrupt or an exit is a finding too
        status = 1
        told = "".join(traceback.format_exception_only(error))
        (notes / "finding").write_text(told + _frames(error))
    finally:
        sys.stdout.flush()
        os._exit(status)


def _frames(error: BaseException, most: int = 8) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if "hypothesis" not in f.filename][-most:]
    return "".join(traceback.format_list(mine))


def _wait(child: int, notes: Path) -> int:
    """The child's exit status, or minus the signal; kills a child that starts no new case."""
    seen, since, spent = -1, time.monotonic(), 0.0
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if (size := (notes / "cases").stat().st_size) != seen:
            seen, since, spent = size, time.monotonic(), _computed(child)
        hung = _computed(child) - spent > PATIENCE_S
        if hung or time.monotonic() - since > WAITING_S:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.02)


def _computed(process: int) -> float:
    """CPU seconds used by a child process and by its own children that have ended."""
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")


def run_for(
    subjects: list[Subject], seconds: float, seed: int, told: Callable[[Round, bool], None]
) -> list[Round]:
    """Runs rounds of all subjects in turn until the time is up.

    Args:
        subjects: the subjects; each gets at least one round.
        seconds: for all subjects together.
        seed: determines the seeds of the rounds.
        told: called with every round and whether its finding is new; also True for a round
            without a finding.

    Returns:
        One round per distinct finding.
    """
    begun = time.monotonic()
    rounds = [(subject, seeds_of(subject.name, seed)) for subject in subjects]
    found: dict[tuple[str, str], Round] = {}
    number = 0
    while number < len(rounds) or time.monotonic() - begun < seconds:
        subject, seeds = rounds[number % len(rounds)]
        # In the first turn every subject gets its share, however long the previous ones took.
        share = max(seconds / len(rounds), begun + seconds - time.monotonic())
        result = run_round(subject, next(seeds), time.monotonic() + share)
        key = (result.subject, result.what)
        told(result, key not in found)
        if result.finding:
            found.setdefault(key, result)
        number += 1
    return list(found.values())
