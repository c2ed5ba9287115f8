"""The subpackage for large graphs stays separate: its imports, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "staticgraph"
ROOM = PACKAGE / "outofcore"
POLICIES = sorted((ROOM / "policies").glob("*.py"))
# Subpackages of the library that ``outofcore`` may use.
SHARED = {
    "batches", "errors", "files", "jit", "packing", "plans", "runner", "schema", "sizes", "steps",
    "store", "text",
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_nothing_else_imports_the_room():
    inside = set(ROOM.rglob("*.py"))
    assert len(inside) > 20
    for path in set(PACKAGE.rglob("*.py")) - inside - set((PACKAGE / "cli").glob("*.py")):
        found = [name for name in imported(path) if name.startswith("staticgraph.outofcore")]
        assert not found or path == PACKAGE / "__init__.py", f"{path} imports {found}"


def test_the_room_uses_little_of_the_rest():
    used = set()
    for path in ROOM.rglob("*.py"):
        for name in imported(path):
            if name.startswith("staticgraph.") and not name.startswith("staticgraph.outofcore"):
                assert name.split(".")[1] in SHARED, f"{path.name}: {name}"
                used.add(name.split(".")[1])
    assert used == SHARED, "what the room may use and does not"


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_policies_are_pure(path):
    found = {name.split(".")[0] for name in imported(path)}
    assert not found & {"torch", "os", "time", "pathlib", "threading", "concurrent"}
