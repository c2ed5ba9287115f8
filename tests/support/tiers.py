"""Selects the quick tests, which `make test` runs, by the processor time that they took.

A test is slow if it has the marker, or if it was measured to use more than :data:`QUICK_S` of
processor time with empty caches; those tests are in ``tests/data/slow_tests.txt``, with seconds and
a name per line. ``make tiers`` runs all tests and writes the list: tests that ran are added if they
were slow and removed if they were quick, and tests that did not run are kept. It is a list, since a
thousand of the seven thousand tests take nine tenths of the time, and only measuring shows which.
Wall-clock time depends on what else runs; the processor time of this process and its children does
so less. The time of a fixture counts for the first test that requests it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

QUICK_S = 0.3
# A test leaves the list if it is quicker than this, so that none alternates.
LEAVES_S = 0.2
LIST = Path(__file__).parents[1] / "data" / "slow_tests.txt"
PROPERTY = "processor_s"
STARTED = pytest.StashKey[float]()


def listed() -> dict[str, float]:
    """Returns the tests in the list and the seconds of processor time that each took."""
    parts = (line.partition(" ") for line in LIST.read_text().splitlines())
    return {name: float(seconds) for seconds, _, name in parts}


def processor_s() -> float:
    """Returns the processor seconds of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[STARTED] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        item.user_properties.append((PROPERTY, processor_s() - item.stash[STARTED]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-tiers", action="store_true", help=f"write {LIST.name} from what tests take"
    )


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow tests, and puts the files that take longest first, so that of two workers none
    is left with such a file at the end."""
    names, of_file = listed(), Counter[Path]()
    for item in items:
        of_file[item.path] += names.get(item.nodeid, 0)
        if item.nodeid in names and "slow" not in item.keywords:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: -of_file[item.path])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--write-tiers"):
        return
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ())]
    seconds = {
        report.nodeid: dict(report.user_properties)[PROPERTY]
        for report in reports
        if getattr(report, "when", "") == "call"
    }
    known = listed()
    slow = {name for name in known if seconds.get(name, QUICK_S) >= LEAVES_S}
    slow |= {name for name, spent in seconds.items() if spent > QUICK_S}
    known |= seconds
    LIST.write_text("".join(f"{known[name]:.1f} {name}\n" for name in sorted(slow)))
