"""Saves a benchmark's results with the machine, date, versions and command that produced them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from staticgraph.files.versions import STEPS, versions


def keep(path: Path, part: str, found: Any) -> None:
    """Writes one part of a file of results; other parts are unchanged.

    Args:
        path: a JSON file, which need not exist yet.
        part: the key of the result, and of the command that produced it.
        found: JSON-serializable values.
    """
    values = json.loads(path.read_text()) if path.exists() else {}
    load = f"load {os.getloadavg()[0]:.0f}"
    values |= {
        part: found,
        "commands": {
            **values.get("commands", {}),
            part: " ".join([f"python -m bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        },
        "machine": f"{os.cpu_count()} shared CPU cores, {load}",
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions(STEPS),
    }
    path.write_text(json.dumps(values, indent=1) + "\n")
