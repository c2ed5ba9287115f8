"""The room for large graphs stays a room: who imports what, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "staticgraph"
ROOM = PACKAGE / "outofcore"
PURE = sorted((ROOM / "policies").glob("*.py"))
# What the room may use of the rest of the library.
SHARED = ("errors", "files", "text", "steps", "recording.recorder")


def imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere, in full."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_nothing_else_imports_the_room():
    allowed = {PACKAGE / "__init__.py", *(PACKAGE / "cli").glob("*.py"), *ROOM.rglob("*.py")}
    for path in set(PACKAGE.rglob("*.py")) - allowed:
        found = [name for name in imported(path) if name.startswith("staticgraph.outofcore")]
        assert not found, f"{path} imports {found}"


def test_the_room_uses_little_of_the_rest():
    for path in ROOM.rglob("*.py"):
        for name in imported(path):
            if name.startswith("staticgraph.") and not name.startswith("staticgraph.outofcore"):
                inside = name.removeprefix("staticgraph.")
                assert inside.startswith(SHARED) or inside == "recording", f"{path.name}: {name}"


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_policies_are_pure(path):
    found = {name.split(".")[0] for name in imported(path)}
    assert not found & {"torch", "os", "time", "pathlib", "threading", "concurrent"}
