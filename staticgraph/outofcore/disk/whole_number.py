"""A whole number as a caller has it: of Python, NumPy (``edges.max() + 1``) or torch."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from staticgraph.errors import BadGraph


def whole_number(value: SupportsIndex, name: str) -> int:
    """The same number of Python.

    Args:
        value: what was given.
        name: what an error calls it.

    Raises:
        BadGraph: it is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise BadGraph(f"{name}={value!r} is not a whole number") from None
