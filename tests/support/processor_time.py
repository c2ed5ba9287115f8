"""Whether the marker `slow` tells the truth: a run ends with a list of the tests that used the
processor for over ten seconds without it.

Time on the wall depends on what else runs; time on the processor, of this process and of its
children, hardly does. What a fixture takes is counted to the first test that asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

SLOW_S = 10.0
NAME = "processor_s"
STARTED = pytest.StashKey[float]()


def processor_s() -> float:
    """Seconds on the processor, of this process and of its children that have ended."""
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
        item.user_properties.append((NAME, processor_s() - item.stash[STARTED]))


def unmarked(reports: list[pytest.TestReport]) -> list[str]:
    """A line for each test that was slow and did not say so, slowest first."""
    found = [(dict(report.user_properties).get(NAME, 0.0), report) for report in reports]
    late = [(s, report) for s, report in found if s > SLOW_S and "slow" not in report.keywords]
    return [f"{s:.0f} s {report.nodeid}" for s, report in sorted(late, key=lambda one: -one[0])]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    stats = terminalreporter.stats
    calls = [one for kind in ("passed", "failed") for one in stats.get(kind, ())]
    lines = unmarked([one for one in calls if getattr(one, "when", "") == "call"])
    if lines:
        terminalreporter.section("over ten seconds of processor time, and not marked slow")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
