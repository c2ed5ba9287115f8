"""Strictly valid JSON: numbers that are not finite become null.

Python writes NaN and Infinity, which are not valid JSON: ``jq`` would reject the output of a
diverged run. All JSON that commands print and all reports are written with this module.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from staticgraph.files import atomic


def to_json(values: Any, indent: int | None = 1) -> str:
    """Returns plain values as JSON, with null for NaN and infinities."""
    return json.dumps(finite(values), indent=indent, allow_nan=False)


def finite(values: Any) -> Any:
    """Returns the same values with None for every float that is not finite."""
    if isinstance(values, dict):
        return {key: finite(item) for key, item in values.items()}
    if isinstance(values, list | tuple):
        return [finite(item) for item in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def save_json(path: str | Path, values: Any) -> None:
    """Writes values as JSON, whole or not at all."""
    atomic.write_text(path, to_json(values) + "\n")
