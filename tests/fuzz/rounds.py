"""Rounds of a subject, each in a child process: an error, a signal, or no end is a finding."""

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

# Seconds without a new case after which a round counts as hung: of its processor where it computes,
# which a busy machine does not shorten, and of the clock where it only waits.
PATIENCE_S = 120.0
WAITING_S = 900.0


@dataclass(frozen=True)
class Round:
    """What one round gave.

    Attributes:
        subject: its name.
        seed: which cases; with the subject's name enough to run them again.
        cases: how many were checked.
        finding: what went wrong, with the case; empty where nothing did.
    """

    subject: str
    seed: int
    cases: int
    finding: str = ""

    @property
    def what(self) -> str:
        """The last line of the error, by which findings are told apart."""
        lines = [line for line in self.finding.splitlines() if line and line[0] not in " \t"]
        return lines[0] if lines else ""


def seeds_of(subject: str, seed: int) -> Iterator[int]:
    """The seeds of a subject's rounds, without end."""
    random = Random(f"{subject} {seed}")
    while True:
        yield random.getrandbits(32)


def run_round(subject: Subject, seed: int, until: float | None = None) -> Round:
    """A round in a child process.

    Args:
        subject: what to run.
        seed: which cases.
        until: on ``time.monotonic``; cases that begin later are left out.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz_round_") as scratch:
        notes = Path(scratch)
        for name in ("cases", "case", "finding", "trace"):
            (notes / name).touch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
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
    except BaseException as error:  # also an interrupt or an exit is a finding
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
    """The exit status of the child, or less a signal; kills one that checks no new case."""
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
    """Seconds of processor that a child has taken, its own children that ended included."""
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")


def run_for(
    subjects: list[Subject], seconds: float, seed: int, told: Callable[[Round, bool], None]
) -> list[Round]:
    """Rounds of all subjects in turn until the time is over; those with findings.

    Args:
        subjects: each has one round at least.
        seconds: for all together.
        seed: which rounds there are.
        told: hears of every round, and whether its finding is the first of its kind.
    """
    begun = time.monotonic()
    rounds = [(subject, seeds_of(subject.name, seed)) for subject in subjects]
    found: dict[tuple[str, str], Round] = {}
    number = 0
    while number < len(rounds) or time.monotonic() - begun < seconds:
        subject, seeds = rounds[number % len(rounds)]
        # In the first turn every subject has its share, however long the ones before it took.
        share = max(seconds / len(rounds), begun + seconds - time.monotonic())
        result = run_round(subject, next(seeds), time.monotonic() + share)
        key = (result.subject, result.what)
        told(result, key not in found)
        if result.finding:
            found.setdefault(key, result)
        number += 1
    return list(found.values())
