"""Parses and formats byte counts as people write them: ``20GiB``, ``1.50 GiB``."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

UNITS = {
    "": 1,
    "B": 1,
    # Without a suffix powers of 1,024, as server programs use them.
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}


def parse_bytes(text: int | float | str) -> int:
    """Converts ``"20GiB"``, ``"1.5 GB"``, ``"512M"`` (MiB), ``"4096"`` or a number of bytes to
    bytes.

    Raises:
        ValueError: not a finite number, an unknown unit, or less than one byte.
        TypeError: neither a number nor text.
    """
    if isinstance(text, bool) or not isinstance(text, str | Real):
        raise TypeError(
            f"{text!r} is a {type(text).__name__}; give an amount of memory as a number of bytes "
            "or as text such as '20GiB'"
        )
    amount: Any = text
    if isinstance(text, str):
        amount_unit = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text)
        if amount_unit is None or amount_unit[2].upper() not in UNITS:
            raise ValueError(
                f"{text!r} is not an amount of memory: write a number and one of B, KB, MB, GB, "
                "TB, "
                "KiB, MiB, GiB, TiB, such as 20GiB; K, M, G and T alone are KiB, MiB, GiB and TiB"
            )
        amount = float(amount_unit[1]) * UNITS[amount_unit[2].upper()]
    if not math.isfinite(amount):
        raise ValueError(f"{text!r} bytes: give a finite number, or text such as '20GiB'")
    count = int(amount)
    if count < 1:
        raise ValueError(f"{text!r} is {count} bytes; an amount of memory must be at least 1 byte")
    return count


def human_bytes(count: float) -> str:
    """Formats a byte count with three significant digits in binary units: ``1.50 GiB``,
    ``12.3 MiB``, ``812 B``."""
    value, sign = abs(float(count)), "-" if count < 0 else ""
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while value >= 999.5:
        value, unit = value / 1024, next(units, "TiB")
        if unit == "TiB":
            break
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{sign}{value:.{digits}f} {unit}"
