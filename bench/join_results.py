"""Joins the files of a GPU run: ``results.json`` with everything, ``tables.txt`` to read.

Results of an earlier call of the suite in the same folder are kept unless this call has the same
part, so parts may run one after another. Results of a rehearsal and of a device are never mixed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.figures import RENDERED


def join(parts: Path, out: Path) -> dict[str, Any]:
    """Reads the available parts; a truncated file is replaced by an error that says so."""
    target = out / "results.json"
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    machine = parts / "machine.txt"
    if machine.exists():
        if ("rehearsal: " in machine.read_text()) != rehearsed(found):
            found = {}
        lines = (line.partition(": ") for line in machine.read_text().splitlines())
        found["machine"] = {key: value for key, _, value in lines if value}
    not_run = parts / "not_run.txt"
    if not_run.exists():
        found["not_run"] = not_run.read_text().split()
    for file in sorted(parts.glob("*.json")):
        try:
            found[file.stem] = json.loads(file.read_text())
        except ValueError as error:
            found[file.stem] = {"error": f"cut off: {error}"}
    target.write_text(json.dumps(found, indent=1) + "\n")
    return found


def rehearsed(found: dict[str, Any]) -> bool:
    """Returns whether these results are of a rehearsal."""
    return "rehearsal" in found.get("machine", {})


def report(out: Path) -> str:
    """Writes and returns the tables of a folder's results."""
    found = json.loads((out / "results.json").read_text())
    blocks = ["REHEARSAL, NO FIGURES\n"] if rehearsed(found) else []
    blocks += [f"## {name}\n\n{render(found)}\n" for name, render in RENDERED.items()]
    (out / "tables.txt").write_text("\n".join(blocks))
    return "\n".join(blocks)
