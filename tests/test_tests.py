"""The tests themselves: shared code is in tests/support, named by noun; laws are not cited by
number."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from support import patience, sampled
from support.drawn import examples
from support.processor_time import NAME, SHOWN, SLOWNESS, slowest, unmarked
from support.tiers import LEAVES_S, QUICK_S, brought_up_to_date, listed

TESTS = Path(__file__).parent
SUPPORT = TESTS / "support"
FILES = sorted(TESTS.rglob("*.py"))
BENCHMARKS = sorted((TESTS.parent / "bench").rglob("*.py"))
MODULE_OF_TESTS = re.compile(r"(^|\.)test_\w+|(^|\.)conftest$")


def named(path: Path) -> str:
    return str(path.relative_to(TESTS.parent))


def imported(source: str) -> list[tuple[int, str]]:
    """Line and module of each import, also inside functions, and names from a tests folder."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found.append((node.lineno, module))
            if module in ("", "tests", "support", "tests.support"):
                found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def test_no_file_imports_from_a_file_of_tests():
    assert len(FILES + BENCHMARKS) > 200
    found = [
        f"{named(path)}:{line} imports {module}: what two files share goes to tests/support"
        for path in FILES + BENCHMARKS
        for line, module in imported(path.read_text())
        if MODULE_OF_TESTS.search(module)
    ]
    assert found == []


def test_an_import_of_a_file_of_tests_is_seen():
    sources = ("import test_a", "from test_a import b", "from tests import test_a")
    assert all(
        any(MODULE_OF_TESTS.search(module) for _, module in imported(source)) for source in sources
    )
    assert not any(
        MODULE_OF_TESTS.search(module) for _, module in imported("from support.tape import a")
    )


def test_what_is_shared_is_no_file_of_tests():
    """Interpreted kernels are tests that a child process runs by path."""
    for path in SUPPORT.rglob("*.py"):
        assert not path.name.startswith("test_"), f"{named(path)} would be collected"
    beside = {path.name for path in TESTS.glob("*.py") if not path.name.startswith("test_")}
    assert beside == {"conftest.py"}, "what tests share stands in tests/support"


def test_laws_are_called_by_what_they_say():
    """docs/laws.md may number them; a test says what it checks."""
    said = {named(path): re.search(r"\b[Ll]aws? (and )?\d", path.read_text()) for path in FILES}
    assert {name: found[0] for name, found in said.items() if found} == {}


def test_every_test_of_a_gpu_runs_on_the_cpu_too():
    """Devices come from support.places, along with the CPU; nothing is marked by hand."""
    by_hand = re.compile(r"mark\.gpu\b")
    assert by_hand.search((SUPPORT / "places.py").read_text())
    for path in FILES:
        if path.name != "places.py" and path != Path(__file__):
            assert not by_hand.search(path.read_text()), (
                f"{named(path)} marks a test for the GPU alone: take the fixture place, or "
                "parametrize a device over DEVICES, so that its body runs on the CPU as well"
            )


def report_of(name: str, seconds: float, keywords: Iterable[str] = ()) -> SimpleNamespace:
    """A test's report: its name, its processor seconds, and twice as many seconds of wall time."""
    return SimpleNamespace(
        nodeid=name,
        duration=2 * seconds,
        user_properties=[(NAME, seconds)],
        keywords=set(keywords),
    )


def test_the_slowest_twenty_are_told_with_the_sum_of_all():
    head, *lines, total = slowest([report_of(f"t{n}", n) for n in range(30)])
    assert head == "on the processor, on the wall (s)"
    assert [line.split()[-1] for line in lines] == [f"t{n}" for n in range(29, 29 - SHOWN, -1)]
    assert lines[0].split() == ["29.0", "58.0", "t29"]
    assert total.split() == ["435", "870", "all", "tests"]


def test_the_sum_is_told_for_the_machine_that_limits_are_given_for():
    """By the mean of what was measured while the tests ran, on a machine as slow as that."""
    reports = [report_of(f"t{n}", n) for n in range(30)]
    for report, slow in zip(reports[::10], (1.0, 2.0, 3.0), strict=True):
        report.user_properties.append((SLOWNESS, slow))
    *_, total, elsewhere = slowest(reports)
    assert total.split()[0] == "435"
    assert elsewhere.split()[0] == "218"
    assert elsewhere.endswith("(this one: 2.00 times as slow, the mean of 3 measurements)")


def test_the_speed_of_now_is_measured_by_processor_time(monkeypatch):
    """The quickest of three tries of a tenth of the work, so that one interruption is not seen."""
    quiet = patience.QUIET_S / 10
    now = iter([0.0, 9 * quiet, 0.0, 2 * quiet, 0.0, 4 * quiet])
    monkeypatch.setattr(patience.time, "process_time", lambda: next(now))
    assert patience.slowness_now() == pytest.approx(2.0)


def limits(source: str) -> list[int]:
    """Lines where a call has a literal time limit in seconds: ``timeout=60``."""
    return [
        node.value.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.keyword)
        and node.arg == "timeout"
        and isinstance(node.value, ast.Constant)
        and node.value.value is not None
    ]


def test_limits_grow_with_a_slow_machine():
    """A time limit only catches hangs, so it comes from support.patience."""
    found = [
        f"{named(path)}:{line} gives a number of seconds: patience(seconds)"
        for path in FILES
        for line in limits(path.read_text())
    ]
    assert found == []


def test_a_limit_in_seconds_is_seen():
    assert limits("run(timeout=60)\nrun(timeout=patience(60))\nrun(timeout=None)") == [1]


def test_patience_follows_the_machine(monkeypatch):
    """A machine four times as slow gets four times the patience, never less than a quiet one."""
    now = iter([0.0, 4 * patience.QUIET_S, 0.0, patience.QUIET_S / 2])
    monkeypatch.setattr(patience.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(patience, "_work", lambda: 0)
    for expected in (4.0, 1.0):
        patience.slowness.cache_clear()
        assert patience.patience(10) == pytest.approx(10 * patience.RESERVE * expected)
    patience.slowness.cache_clear()


def test_slow_tests_without_the_marker_are_listed():
    def report(name: str, seconds: float, *keywords: str) -> SimpleNamespace:
        return report_of(name, seconds, keywords)

    ended = [report("a", 4.9), report("b", 6.0), report("c", 40.0, "slow"), report("d", 12.0)]
    assert unmarked(ended) == ["12 s d", "6 s b"]


def test_the_list_of_slow_tests_follows_a_run():
    """Slow tests are added and quick ones removed; those between or not run stay."""
    between = (LEAVES_S + QUICK_S) / 2
    seconds = {"new": 1.1 * QUICK_S, "quick": 0.2 * QUICK_S, "was slow": 0.9 * LEAVES_S}
    seconds |= {"still": 4.0, "about": between, "fast": 0.9 * QUICK_S}
    slow = ["was slow", "still", "about", "did not run"]
    assert brought_up_to_date(slow, seconds) == ["about", "did not run", "new", "still"]


def test_what_is_in_the_list_is_slow_here(request):
    """Checked in this very run; a name that no longer exists should be removed from the list."""
    names = listed()
    for item in request.session.items:
        if item.nodeid in names:
            assert "slow" in item.keywords
    files = {name.partition("::")[0] for name in names}
    assert [name for name in sorted(files) if not (TESTS.parent / name).is_file()] == []


def cases_of(name: str, every: int | None, count: int) -> list[Any]:
    marker = every and pytest.mark.sampled(every).mark
    names = [f"{name}[{number}]" for number in range(count)]
    return [SimpleNamespace(nodeid=one, get_closest_marker=lambda _: marker) for one in names]


def test_every_third_case_of_a_family_is_drawn():
    """Each family is counted separately; cases without the marker stay."""
    a, b, plain = cases_of("a", 3, 5), cases_of("b", 2, 2), cases_of("plain", None, 3)
    out = sampled.left_out([*a[:2], *b, *plain, *a[2:]])
    assert [one.nodeid for one in out] == ["a[1]", "b[1]", "a[2]", "a[4]"]


def test_cases_that_are_drawn_have_the_options_in_turn():
    drawn = sampled.in_turn(["a", "b", "c"], [(0, False), (1, True)])
    assert drawn[::2] == [("a", 0, False), ("b", 1, True), ("c", 0, False)]
    assert len(set(drawn)) == len(drawn) == 6


@pytest.mark.parametrize(
    ("asked", "every", "gpu", "run"),
    [
        ("tests", "", False, 2),
        ("tests/test_x.py::a[1]", "", False, 5),
        ("tests", "1", False, 5),
        ("tests", "", True, 5),
    ],
)
def test_all_cases_run_where_they_are_named_or_asked_for(asked, every, gpu, run, monkeypatch):
    monkeypatch.setenv("EVERY_CASE", every)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    told: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    items = cases_of("a", 3, 5)
    config: Any = SimpleNamespace(args=[asked], hook=hook)
    sampled.pytest_collection_modifyitems(config, items)
    assert (len(items), len(told)) == (run, 5 - run)


def test_time_of_the_processor_is_noted(request):
    """The plugin is active in this run: it recorded the time of the tests before this one."""
    assert request.config.pluginmanager.has_plugin("support.processor_time")


def test_a_test_draws_the_same_alone_and_after_others():
    assert random.random() == random.Random(0).random()
    assert np.random.random() == np.random.RandomState(0).random()  # noqa: NPY002
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(0))


def test_drawn_examples_are_the_same_in_every_run(request):
    """Also with settings of their own, which inherit from the profile what they do not set."""
    profile = settings.get_profile(settings.get_current_profile_name())
    drawn = [item for item in request.session.items if hasattr(item.obj, "hypothesis")]
    wrong = [
        item.nodeid
        for item in drawn
        if item.obj._hypothesis_internal_use_settings.derandomize != profile.derandomize
    ]
    assert not wrong


def test_half_of_the_examples_are_drawn_by_default(monkeypatch):
    monkeypatch.delenv("EVERY_CASE", raising=False)
    assert [examples(count).max_examples for count in (60, 12, 7)] == [30, 10, 7]
    monkeypatch.setenv("EVERY_CASE", "1")
    assert examples(60).max_examples == 60


def test_settings_of_a_test_keep_what_the_profile_says():
    profile = settings.get_profile(settings.get_current_profile_name())
    assert settings(max_examples=7, deadline=None).derandomize == profile.derandomize
    assert settings.get_profile("same").derandomize
    assert not settings.get_profile("random").derandomize
