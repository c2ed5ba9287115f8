"""Fails if a public name has no type, and prints which.

    .venv/bin/python tools/public_types.py

``pyright --verifytypes`` reports this in ten thousand lines, and for the environment that it finds
on ``PATH``. This script prints only the names that lack a type. PyG ships no ``py.typed``, so its
classes have no known types, torch-sim is an extra, and a class that extends one of theirs counts as
unknown in any case: such a class is left out if only its bases are unknown.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = "staticgraph"
UNTYPED = ("torch_geometric.", "torch_sim.")
OF_BASES = ("Type of base class", "Type of metaclass")


def extends_untyped(name: str, root: Path) -> bool:
    """Returns whether a class, given by its full name, extends one without types, if indirectly."""
    module, _, last = name.rpartition(".")
    folder = root / module.replace(".", "/")
    path = (
        folder.with_suffix(".py") if folder.with_suffix(".py").is_file() else folder / "__init__.py"
    )
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text())
    came_from = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == last:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            full = [came_from.get(base, f"{module}.{base}") for base in bases]
            return any(
                base.startswith(UNTYPED)
                or (base.startswith(f"{PACKAGE}.") and extends_untyped(base, root))
                for base in full
            )
    return came_from.get(last, "").startswith(f"{PACKAGE}.") and extends_untyped(
        came_from[last], root
    )


def without_types(report: dict[str, Any], root: Path) -> tuple[list[str], list[str]]:
    """Returns the names that lack a type, with reasons, and the classes left out, from a report."""
    lacking, left_out = [], []
    for symbol in report["typeCompleteness"]["symbols"]:
        if not symbol["isExported"] or (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]):
            continue
        name = symbol["name"]
        said = [each["message"] for each in symbol["diagnostics"] if each["severity"] == "error"]
        if all(each.startswith(OF_BASES) for each in said) and extends_untyped(name, root):
            left_out.append(name)
        else:
            lacking.append(f"{name}: {' '.join(' '.join(said).split())}")
    return lacking, left_out


def verified() -> dict[str, Any]:
    """Runs pyright on the package in the current folder and returns its report.

    Raises:
        SystemExit: if pyright finds no public name.
    """
    scripts = str(Path(sys.executable).parent)
    # The package is found by PYTHONPATH: pyright does not follow an editable installation.
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path.cwd()),
    }
    command = ["pyright", "--verifytypes", PACKAGE, "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    report = json.loads(done.stdout)
    found = report.get("typeCompleteness", {}).get("symbols", ())
    if not any(symbol["isExported"] for symbol in found):
        raise SystemExit(f"pyright found no public name of {PACKAGE}: run this where it stands")
    return report


def main(arguments: Sequence[str]) -> int:
    report = verified()
    lacking, left_out = without_types(report, Path.cwd())
    print(*lacking, sep="\n", end="\n" if lacking else "")
    counts = report["typeCompleteness"]["exportedSymbolCounts"]
    print(
        f"public names: {sum(counts.values()):,}, without a type: {len(lacking)}, "
        f"and {len(left_out)} classes that extend one of PyG or torch-sim, which have no types"
    )
    return 1 if lacking else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
