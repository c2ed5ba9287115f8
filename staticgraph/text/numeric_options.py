"""Checks numbers given as options, such as ``batch_size=4``.

A wrong one is refused where it is given, with its name and what to give instead, and not by
whatever computes with it later. Integers of NumPy and torch become Python's.
"""

from __future__ import annotations

import math
import operator
import reprlib
from typing import Any, SupportsIndex

import numpy as np


def whole_option(
    name: str,
    value: SupportsIndex,
    least: int | None = None,
    error: type[ValueError] = ValueError,
) -> int:
    """Returns a whole number as a Python ``int``.

    Args:
        name: the option's name.
        value: an integer of Python, NumPy or torch; 2.0 and True are none.
        least: the smallest allowed value.
        error: the type to raise.

    Raises:
        ValueError: (or ``error``) it is not a whole number, or it is below ``least``.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise error(f"{name}={reprlib.repr(value)}: give a whole number{bound}")
    return number


def real_option(
    name: str,
    value: Any,
    least: float | None = None,
    *,
    more: bool = False,
    infinite: bool = False,
) -> float:
    """Returns a number as a Python ``float``.

    Args:
        name: the option's name.
        value: a number of Python, NumPy or torch; a text is none.
        least: the smallest allowed value.
        more: the number must be above ``least``.
        infinite: whether infinity is allowed.

    Raises:
        ValueError: it is not such a number; NaN never is.
    """
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    low = -math.inf if least is None else least
    allowed = low < number if more else low <= number
    if not allowed or math.isnan(number) or (math.isinf(number) and not infinite):
        bound = "" if least is None else f" above {low:g}" if more else f" of at least {low:g}"
        raise ValueError(f"{name}={value!r}: give a number{bound}")
    return number
