"""A fuzzing subject: the source of its cases and the check that each must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis.strategies import SearchStrategy


class Subject(NamedTuple):
    """A strategy and a check.

    Attributes:
        name: what is checked.
        cases: makes the strategy; a function, since some strategies need data on disk.
        check: raises if a case shows a fault.
        examples: cases per run, enough for a few seconds.
    """

    name: str
    cases: Callable[[], SearchStrategy[Any]]
    check: Callable[[Any], None]
    examples: int
