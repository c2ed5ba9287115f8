"""Imports go one way, and the pure modules know no torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import staticgraph

ROOT = Path(staticgraph.__file__).parent

# Lowest first; a module imports its own level and those below. Longer names win.
LEVELS = [
    ["files"],
    [
        "errors",
        "documents",
        "jit_cache",
        "json_text",
        "progress",
        "sizes",
        "schema",
        "table",
        "memory.byte_sizes",
        "memory.out_of_memory",
    ],
    ["packing", "plan", "attention_blocks", "reserves"],
    ["memory.fit", "memory.forms", "memory.least_squares", "memory.model"],
    ["memory.readers.device"],
    ["memory.budget", "memory.sizing"],
    ["buckets", "batching"],
    ["store", "datasets", "models"],
    ["slots", "collate", "collate_axes", "batch", "typed", "unbatch"],
    ["kernels", "nn"],
    ["running", "predictions", "report", "loader", "device_batches"],
    ["memory"],
    ["runner", "outofcore"],
    ["dryrun"],
    ["training", "planning"],
    ["cli"],
]
PURE = [
    "files",
    "errors",
    "documents",
    "sizes",
    "schema",
    "table",
    "packing",
    "plan",
    "attention_blocks",
    "reserves",
    "buckets",
    "batching",
    "memory.byte_sizes",
    "memory.fit",
    "memory.forms",
    "memory.least_squares",
    "memory.model",
    "memory.budget",
    "memory.sizing",
]
# Doors to the level above, each opened inside one function, for the reason given.
DOORS = {
    ("memory.budget", "memory.readers"): "MemoryBudget.of_device reads the device; the rest counts",
    ("memory.readers.step", "runner"): "a reading of real steps is a reading of the runner's steps",
}
HEAVY = {"torch", "torch_geometric", "triton"}


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(path: Path) -> set[str]:
    """What a file imports, lazily too, but not for type checkers alone."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"staticgraph.{alias.name}" for alias in node.names}
                if node.module == "staticgraph"
                else {node.module}
            )
    return found


def level(name: str) -> int:
    matches = [
        (len(prefix), number)
        for number, prefixes in enumerate(LEVELS)
        for prefix in prefixes
        if name == prefix or name.startswith(prefix + ".")
    ]
    assert matches, f"staticgraph.{name} has no place in LEVELS: say where it belongs"
    return max(matches)[1]


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_down(name):
    for imported in imports(modules()[name]):
        if imported.startswith("staticgraph."):
            other = imported.removeprefix("staticgraph.")
            if other in modules() and (name, other) not in DOORS:
                assert level(other) <= level(name), f"{name} imports {other}, which stands above it"


@pytest.mark.parametrize("prefix", PURE)
def test_pure_modules_import_no_torch(prefix):
    chosen = [n for n in modules() if n == prefix or n.startswith(prefix + ".")]
    assert chosen
    for name in chosen:
        tops = {imported.split(".")[0] for imported in imports(modules()[name])}
        assert not tops & HEAVY, f"{name} imports {tops & HEAVY}"
