"""Which tests are quick: those that `make test` runs.

A test is slow where it says so itself (the marker), or where it was seen to use the processor for
longer than :data:`QUICK_S`; those are in ``tests/data/slow_tests.txt``, seconds and a name per
line. ``make
tiers`` runs all tests and writes the list anew: what ran and was slow is in, what ran and was quick
is out, what did not run stays. A list, since some hundreds of six thousand tests take nine tenths
of the time, and which ones is a matter of measuring.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.processor_time import seconds_of

Test = TypeVar("Test")
QUICK_S = 0.4
# One that is in the list leaves it when it is quicker than this, so that none goes to and fro.
LEAVES_S = 0.25
LIST = Path(__file__).parents[1] / "data" / "slow_tests.txt"


def listed() -> dict[str, float]:
    """Tests that were slow, and the seconds of processor time that each took."""
    parts = (line.partition(" ") for line in LIST.read_text().splitlines())
    return {name: float(seconds) for seconds, _, name in parts}


def brought_up_to_date(slow: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The list after a run.

    Args:
        slow: the names that are in it.
        seconds: of processor time, for every test that ran.
    """
    kept = {name for name in slow if seconds.get(name, QUICK_S) >= LEAVES_S}
    return sorted(kept | {name for name, spent in seconds.items() if spent > QUICK_S})


def shared_out(slow: Sequence[Test], quick: Sequence[Test], processes: int) -> list[Test]:
    """An order in which every process begins with its share of the slow tests, the longest first.

    xdist's ``worksteal`` gives each process a piece of the list, as long as the others', and takes
    from the ends of pieces for those that are done. So pieces end in quick tests: what is left at
    last is short, and no process waits for another's long one.

    Args:
        slow: the longest first; dealt out in turn.
        quick: in any order.
        processes: how many.
    """
    rooms = [
        len(slow) * (number + 1) // processes - len(slow) * number // processes
        for number in range(processes)
    ]
    shares: list[list[Test]] = [[] for _ in range(processes)]
    takers = itertools.cycle(zip(shares, rooms, strict=True))
    for test in slow:
        next(share for share, room in takers if len(share) < room).append(test)
    left, ordered, done = len(slow) + len(quick), [], 0
    for number, share in enumerate(shares):
        piece = left // (processes - number)
        others = quick[done : done + max(0, piece - len(share))]
        ordered += [*share, *others]
        left -= piece
        done += len(others)
    return [*ordered, *quick[done:]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-tiers", action="store_true", help=f"write {LIST.name} from what tests take"
    )


@pytest.hookimpl(wrapper=True)  # before tests are chosen by their markers, and after
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    names = listed()
    for item in items:
        if item.nodeid in names and "slow" not in item.keywords:
            item.add_marker(pytest.mark.slow)
    yield
    slow = [item for item in items if "slow" in item.keywords]
    slow.sort(key=lambda item: -names.get(item.nodeid, QUICK_S))
    quick = [item for item in items if "slow" not in item.keywords]
    items[:] = shared_out(slow, quick, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--write-tiers") or hasattr(config, "workerinput"):
        return
    seconds, were = seconds_of(terminalreporter.stats), listed()
    known = {**were, **seconds}
    slow = brought_up_to_date(were, seconds)
    LIST.write_text("".join(f"{known[name]:.1f} {name}\n" for name in slow))
