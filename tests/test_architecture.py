"""The layers of the package: imports go down, nothing is circular, and the pure rooms import no
torch.

Every import counts, including those for type checkers and those inside functions, since a reader
follows them all. The front door (``staticgraph/__init__.py``) names everything and is left out; of
the modules inside, only those of ``cli`` may import it.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import networkx
import pytest

import staticgraph

ROOT = Path(staticgraph.__file__).parent

# Rooms are the top-level packages and modules, lowest floor first: a room may import itself and the
# rooms listed before it.
ROOMS = (
    "errors",
    "jit",
    "text",
    "schema",
    "files",
    "internals",
    "sizes",
    "packing",
    "memory",
    "plans",
    "store",
    "datasets",
    "epochs",
    "kernels",
    "distributed",
    "batches",
    "models",
    "nn",
    "rewrites",
    "steps",
    "recording",
    "probing",
    "checking",
    "runner",
    "atoms",
    "dryrun",
    "outofcore",
    "training",
    "lightning",
    "serving",
    "cli",
)
MOST_ROOMS = 31
# Rooms within a room, lowest first; modules directly in the outer room are above them all.
FLOORS_OF = {
    "batches": ("slots", "collation", "batch", "padding", "loading"),
    "nn": ("context", "utils", "attention", "norm", "aggr", "pool", "conv"),
    "outofcore": ("policies", "disk", "sampling", "training"),
    "rewrites": ("captured_graph", "passes", "neighbours", "attention", "embeddings", "layers"),
    "steps": ("state", "loss", "tracing", "computation", "compilation"),
}
PURE = ("errors", "jit", "schema", "text", "files", "sizes", "packing", "memory", "plans", "epochs")
HEAVY = {"torch", "torch_geometric", "triton"}
# A module of a pure room that may import torch, since it reads the device.
IMPURE = {"memory.device"}


class Import(NamedTuple):
    """One import in one file: module, line, and whether it is inside a function."""

    module: str
    line: int
    inside: bool


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, except the package itself and
    ``__main__``."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and name != "__main__":  # an entry point into cli, not a room
            found[name] = path
    return found


MODULES = modules()


@functools.cache
def tree_of(name: str) -> ast.Module:
    """The syntax tree of a module, parsed once for all tests."""
    return ast.parse(MODULES[name].read_text())


@functools.cache
def imports_of(name: str) -> list[Import]:
    """All imports of a module."""
    found: list[Import] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{MODULES[name]}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = full.removeprefix("staticgraph.") in MODULES
                found.append(Import(full if known else node.module, node.lineno, inside))
        within = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                visit(child, within)

    visit(tree_of(name), False)
    return found


def own(name: str) -> list[tuple[str, int]]:
    """The modules of this package that a module imports, each with its line."""
    return [
        (item.module.removeprefix("staticgraph."), item.line)
        for item in imports_of(name)
        if item.module.startswith("staticgraph.")
    ]


def room(name: str) -> str:
    """The room that a module belongs to."""
    return name.partition(".")[0]


def floor(name: str) -> tuple[int, int]:
    """The floor of a module's room, and the module's floor within that room."""
    top, _, rest = name.partition(".")
    inner = FLOORS_OF.get(top, ())
    below = rest.partition(".")[0]
    return ROOMS.index(top), inner.index(below) if below in inner else len(inner)


def test_every_room_has_a_floor():
    assert {room(name) for name in MODULES} == set(ROOMS)
    assert len(ROOMS) <= MOST_ROOMS


@pytest.mark.parametrize("top", FLOORS_OF)
def test_every_room_within_a_room_has_a_floor(top):
    found = {path.parent.name for path in (ROOT / top).glob("*/__init__.py")}
    assert found == set(FLOORS_OF[top])


def test_imports_go_down():
    found = [
        f"{MODULES[name].relative_to(ROOT)}:{line} imports {other}, which stands above it"
        for name in sorted(MODULES)
        for other, line in own(name)
        if floor(other) > floor(name)
    ]
    assert found == []


def test_nothing_comes_in_through_the_front_door():
    found = [
        f"{MODULES[name].relative_to(ROOT)}:{item.line} imports the front door"
        for name in sorted(MODULES)
        for item in imports_of(name)
        if item.module == "staticgraph" and room(name) != "cli"
    ]
    assert found == []


def circles(arrows: list[tuple[str, str]]) -> list[list[str]]:
    """The strongly connected components with more than one member."""
    graph = networkx.DiGraph((a, b) for a, b in arrows if a != b)
    return [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]


def test_no_circle_of_files():
    assert not circles([(name, other) for name in MODULES for other, _ in own(name)])


def test_no_circle_of_rooms():
    arrows = [(room(name), room(other)) for name in MODULES for other, _ in own(name)]
    assert not circles(arrows)


@pytest.mark.parametrize("prefix", PURE)
def test_pure_rooms_import_no_torch(prefix):
    chosen = [name for name in MODULES if room(name) == prefix]
    assert chosen
    for name in chosen:
        tops = {item.module.partition(".")[0] for item in imports_of(name)}
        assert not tops & HEAVY or name in IMPURE, f"{name} imports {tops & HEAVY}"


# Private names that other packages give their objects and that some class here defines too.
OF_OTHERS = {"_buffers", "_parameters", "_fields", "_schema", "_functions"}


class Private(NamedTuple):
    """A name with one leading underscore: defined here (``made``), or read from another object."""

    name: str
    line: int
    made: bool


def private_names(tree: ast.AST) -> list[Private]:
    """The private attributes, functions and annotated names in a file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own or isinstance(node.ctx, ast.Store):
                found.append(Private(node.attr, node.lineno, own))
        elif isinstance(node, ast.FunctionDef):
            found.append(Private(node.name, node.lineno, True))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(Private(node.target.id, node.lineno, True))
    return [item for item in found if item.name[:1] == "_" and item.name[:2] != "__"]


def foreign(names: dict[str, list[Private]]) -> list[str]:
    """The private names that a module reads and that only other rooms define."""
    rooms: dict[str, set[str]] = {}
    for module, items in names.items():
        for item in items:
            if item.made and item.name not in OF_OTHERS:
                rooms.setdefault(item.name, set()).add(room(module))
    return [
        f"{module}:{item.line} reads {item.name}, which is private to {', '.join(sorted(made))}"
        for module, items in names.items()
        for item in items
        if not item.made and (made := rooms.get(item.name)) and room(module) not in made
    ]


def test_no_room_reads_anothers_private_names():
    assert foreign({name: private_names(tree_of(name)) for name in MODULES}) == []
