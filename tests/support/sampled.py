"""``@pytest.mark.sampled(3)``: every third case of a test runs; with ``EVERY_CASE=1``, all of them.
``@pytest.mark.release``: the test runs with ``EVERY_CASE=1`` alone.

For tests whose cases differ only in the layer, the operator or the dtype, where most errors appear
in many cases; ``sampled(3, always=["pna"])`` keeps the case of this id, which alone reaches some
lines. ``make test-every`` runs all cases, which each release and each new version of torch or PyG
requires. With a GPU, or if cases are named on the command line, nothing is left out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sampled(k, always=[...]): of its cases every k-th runs; with EVERY_CASE=1 all"
    )
    config.addinivalue_line("markers", "release: runs with EVERY_CASE=1")


def in_turn(rows: Sequence[Any], options: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns all combinations, in an order in which the cases that are left out differ per row.

    Of ``n`` options, ``@pytest.mark.sampled(n)`` keeps each row once, with the options in turn.
    """
    wide = [row if isinstance(row, tuple) else (row,) for row in rows]
    more = [option if isinstance(option, tuple) else (option,) for option in options]
    turns = range(len(more))
    return [(*row, *more[(k + n) % len(more)]) for k, row in enumerate(wide) for n in turns]


def left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the cases to leave out: of each test, all but one of k.

    Each case that is kept has as many values of parameters as there are that none before it has:
    every k-th might have the same value of a parameter throughout.
    """
    omitted = [item for item in items if item.get_closest_marker("release") is not None]
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None and item not in omitted:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in families.values():
        marker: Any = cases[0].get_closest_marker("sampled")
        always = marker.kwargs.get("always", ())
        assert set(always) <= {case.callspec.id for case in cases}, cases
        seen: set[tuple[str, int]] = set()
        for _ in range(max(len(always), -(-len(cases) // marker.args[0]))):
            kept = max(cases, key=lambda c: (c.callspec.id in always, len(_values(c) - seen)))
            seen |= _values(kept)
            cases.remove(kept)
        omitted += cases
    return omitted


def _values(case: Any) -> set[tuple[str, int]]:
    parameters = case.callspec.params.items() if hasattr(case, "callspec") else ()
    return {(name, id(value)) for name, value in parameters}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("EVERY_CASE") or torch.cuda.is_available():
        return
    if any("[" in name or "::" in name for name in config.args):
        return
    out = left_out(items)
    if out:
        config.hook.pytest_deselected(items=out)
        names = {item.nodeid for item in out}
        items[:] = [item for item in items if item.nodeid not in names]
