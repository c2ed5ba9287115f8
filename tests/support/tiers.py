"""Selects the quick tests, which `make test` runs.

A test is slow if it has the marker, or if it was measured to use more than :data:`QUICK_S` of
processor time with empty caches; those tests are in ``tests/data/slow_tests.txt``, with seconds and
a name per line. ``make tiers`` runs all tests and writes the list: tests that ran are added if they
were slow and removed if they were quick, and tests that did not run are kept. It is a list, since a
thousand of the seven thousand tests take nine tenths of the time, and only measuring shows which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.processor_time import seconds_of

QUICK_S = 0.3
# A test leaves the list if it is quicker than this, so that none alternates.
LEAVES_S = 0.2
LIST = Path(__file__).parents[1] / "data" / "slow_tests.txt"


def listed() -> dict[str, float]:
    """Returns the tests in the list and the seconds of processor time that each took."""
    parts = (line.partition(" ") for line in LIST.read_text().splitlines())
    return {name: float(seconds) for seconds, _, name in parts}


def brought_up_to_date(slow: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Returns the list after a run.

    Args:
        slow: the names in the list so far.
        seconds: processor time of every test that ran, by name.
    """
    kept = {name for name in slow if seconds.get(name, QUICK_S) >= LEAVES_S}
    return sorted(kept | {name for name, spent in seconds.items() if spent > QUICK_S})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-tiers", action="store_true", help=f"write {LIST.name} from what tests take"
    )


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = listed()
    for item in items:
        if item.nodeid in names and "slow" not in item.keywords:
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--write-tiers"):
        return
    seconds, were = seconds_of(terminalreporter.stats), listed()
    known = {**were, **seconds}
    slow = brought_up_to_date(were, seconds)
    LIST.write_text("".join(f"{known[name]:.1f} {name}\n" for name in slow))
