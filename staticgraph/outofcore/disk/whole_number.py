"""Converts integers of Python, NumPy (``edges.max() + 1``) or torch to ``int``."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from staticgraph.errors import BadGraph


def whole_number(value: SupportsIndex, name: str) -> int:
    """Returns a whole number as a Python ``int``.

    Args:
        value: the given value.
        name: its name in error messages.

    Raises:
        BadGraph: if it is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise BadGraph(f"{name}={value!r} is not a whole number") from None
