"""The JSON schemas of the commands' output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def schema_of(name: str) -> dict[str, Any]:
    """Returns the schema of a command, or of a file that it writes."""
    return json.loads((FOLDER / f"{name}.json").read_text())
