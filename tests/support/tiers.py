"""Which tests are quick: those that `make test` runs.

A test is slow where it says so itself (the marker), or where it was seen to use the processor for
longer than :data:`QUICK_S`; those are in ``tests/data/slow_tests.txt``, a name a line. ``make
tiers`` runs all tests and writes the list anew: what ran and was slow is in, what ran and was quick
is out, what did not run stays. A list, since some hundreds of six thousand tests take nine tenths
of the time, and which ones is a matter of measuring.
"""

from __future__ import annotations

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


def listed() -> set[str]:
    """Names of tests that were slow."""
    return set(LIST.read_text().splitlines())


def brought_up_to_date(slow: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The list after a run.

    Args:
        slow: the names that are in it.
        seconds: of processor time, for every test that ran.
    """
    kept = {name for name in slow if seconds.get(name, QUICK_S) >= LEAVES_S}
    return sorted(kept | {name for name, spent in seconds.items() if spent > QUICK_S})


def shared_out(slow: Sequence[Test], quick: Sequence[Test], processes: int) -> list[Test]:
    """An order in which every process begins with its share of the slow tests.

    xdist's ``worksteal`` gives each process a piece of the list, as long as the others', and takes
    from the ends of pieces for those that are done. So pieces end in quick tests: what is left at
    last is short, and no process waits for another's long one.
    """
    left, ordered = len(slow) + len(quick), []
    done_slow = done_quick = 0
    for number in range(processes):
        piece = left // (processes - number)
        until = len(slow) * (number + 1) // processes
        some = slow[done_slow:until]
        others = quick[done_quick : done_quick + max(0, piece - len(some))]
        ordered += [*some, *others]
        left -= piece
        done_slow, done_quick = until, done_quick + len(others)
    return [*ordered, *quick[done_quick:]]


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
    quick = [item for item in items if "slow" not in item.keywords]
    items[:] = shared_out(slow, quick, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--write-tiers") or hasattr(config, "workerinput"):
        return
    seconds = seconds_of(terminalreporter.stats)
    LIST.write_text("".join(f"{name}\n" for name in brought_up_to_date(listed(), seconds)))
