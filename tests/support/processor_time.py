"""What tests cost: a run ends with the twenty that used the processor most, and with those that did
for so long that they belong to the slow ones (:mod:`support.tiers`).

Time on the wall depends on what else runs; time on the processor, of this process and of its
children, hardly does. What a fixture takes is counted to the first test that asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from typing import Any

import pytest

# What compiles for the first time takes longer than it will again.
SLOW_S = 5.0
SHOWN = 20
NAME = "processor_s"
STARTED = pytest.StashKey[float]()


# Of processes that are no children of this one, since they fork from a server, and were told of.
_elsewhere = [0.0]


def own_processor_s() -> float:
    """Seconds on the processor, of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def add_elsewhere(seconds: float) -> None:
    """Counts what another process spent to the test that runs."""
    _elsewhere[0] += seconds


def processor_s() -> float:
    """Seconds on the processor so far, of this process and of those that it waited for."""
    return own_processor_s() + _elsewhere[0]


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


def by_cost(reports: list[pytest.TestReport]) -> list[tuple[float, pytest.TestReport]]:
    """Reports with their seconds on the processor, most first."""
    found = [(dict(report.user_properties).get(NAME, 0.0), report) for report in reports]
    return sorted(found, key=lambda one: -one[0])


def slowest(reports: list[pytest.TestReport]) -> list[str]:
    """A line for each of the tests that cost most, and one for all together."""
    costs = by_cost(reports)
    lines = [
        f"{s:6.1f} {report.duration:7.1f}  {report.nodeid}" for s, report in costs[:SHOWN] if s > 0
    ]
    total = f"{sum(s for s, _ in costs):6.0f} {sum(r.duration for _, r in costs):7.0f}  all tests"
    return ["on the processor, on the wall (s)", *lines, total]


def unmarked(reports: list[pytest.TestReport]) -> list[str]:
    """A line for each test that was slow and did not say so, slowest first."""
    late = [(s, r) for s, r in by_cost(reports) if s > SLOW_S and "slow" not in r.keywords]
    return [f"{s:.0f} s {report.nodeid}" for s, report in late]


def calls_of(stats: Mapping[str, Any]) -> list[pytest.TestReport]:
    """Of a run, the report of each test that ran."""
    ended = [one for kind in ("passed", "failed") for one in stats.get(kind, ())]
    return [one for one in ended if getattr(one, "when", "") == "call"]


def seconds_of(stats: Mapping[str, Any]) -> dict[str, float]:
    """Seconds on the processor of each test that ran, by name."""
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
