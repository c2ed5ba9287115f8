"""Measures the cost of tests.

A run ends with a list of the twenty tests with the most processor time, and of those that take so
long that they should be marked slow (:mod:`support.tiers`). Wall-clock time depends on what else
runs; the processor time of this process and its children does so less. The time of a fixture counts
for the first test that requests it.

On a shared machine even processor time doubles from one hour to the next. So every few seconds a
process measures how long a loop takes, and the run ends with the time that the tests would have
taken on the machine for which time limits are given (:mod:`support.patience`).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Generator, Mapping
from typing import Any

import pytest

from staticgraph.text.how_many import how_many
from support.patience import slowness_now

# Well above the limit of the list, since the first compilation takes longer than later ones.
SLOW_S = 5.0
SHOWN = 20
NAME = "processor_s"
SLOWNESS = "slowness"
STARTED = pytest.StashKey[float]()
# Processor seconds of a process between two measurements of its speed, which take about 15 ms.
APART_S = 5.0
_measured_at = [-APART_S]


def processor_s() -> float:
    """Returns the processor seconds of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    began = processor_s()
    if began - _measured_at[0] >= APART_S:
        item.user_properties.append((SLOWNESS, slowness_now()))
        _measured_at[0] = began
    item.stash[STARTED] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        item.user_properties.append((NAME, processor_s() - item.stash[STARTED]))


def by_cost(reports: list[pytest.TestReport]) -> list[tuple[float, pytest.TestReport]]:
    """Returns the reports with their processor seconds, most first."""
    found = [(dict(report.user_properties).get(NAME, 0.0), report) for report in reports]
    return sorted(found, key=lambda one: -one[0])


def slowest(reports: list[pytest.TestReport]) -> list[str]:
    """Returns a line for each of the most expensive tests, and one for the total."""
    costs = by_cost(reports)
    lines = [
        f"{s:6.1f} {report.duration:7.1f}  {report.nodeid}" for s, report in costs[:SHOWN] if s > 0
    ]
    spent = sum(s for s, _ in costs)
    total = f"{spent:6.0f} {sum(r.duration for _, r in costs):7.0f}  all tests"
    return ["on the processor, on the wall (s)", *lines, total, *_elsewhere_spent(spent, reports)]


def _elsewhere_spent(spent: float, reports: list[pytest.TestReport]) -> list[str]:
    """Returns a line with the processor seconds on the machine that limits are given for."""
    given = [dict(report.user_properties) for report in reports]
    found = [one[SLOWNESS] for one in given if SLOWNESS in one]
    if not found:
        return []
    slow = statistics.fmean(found)
    times = f"{slow:.2f} times as slow, the mean of {how_many(len(found), 'measurement')}"
    return [f"{spent / slow:6.0f}          on the machine that limits are for (this one: {times})"]


def unmarked(reports: list[pytest.TestReport]) -> list[str]:
    """Returns a line for each slow test that is not marked slow, slowest first."""
    late = [(s, r) for s, r in by_cost(reports) if s > SLOW_S and "slow" not in r.keywords]
    return [f"{s:.0f} s {report.nodeid}" for s, report in late]


def calls_of(stats: Mapping[str, Any]) -> list[pytest.TestReport]:
    """Returns the report of each test that ran."""
    ended = [one for kind in ("passed", "failed") for one in stats.get(kind, ())]
    return [one for one in ended if getattr(one, "when", "") == "call"]


def seconds_of(stats: Mapping[str, Any]) -> dict[str, float]:
    """Returns the processor seconds of each test that ran, by name."""
    return {report.nodeid: s for s, report in by_cost(calls_of(stats))}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    calls = calls_of(terminalreporter.stats)
    if len(calls) > SHOWN:
        terminalreporter.section("the slowest tests")
        terminalreporter.write("".join(f"{line}\n" for line in slowest(calls)))
    lines = unmarked(calls)
    if lines:
        terminalreporter.section(f"over {SLOW_S:g} s of processor time and not slow: make tiers")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
