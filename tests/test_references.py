"""Everything that pages and docstrings refer to exists: modules, their members, files and folders.

A rename done by an editor leaves text untouched, so text is checked as code is: dotted names in
docstring references and on pages, imports of scripts that no test runs, and file paths.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from staticgraph.checking import watching

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    # A changelog describes earlier versions.
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "changelog.md"),
]
SOURCES = [
    path
    for room in ("staticgraph", "bench", "tests")
    for path in sorted((ROOT / room).rglob("*.py"))
]
SCRIPTS = sorted((ROOT / "bench").rglob("*.py"))
REFERENCE = re.compile(r":(?:mod|func|class|meth|attr|data|exc):`~?(staticgraph\.[\w.]+)`")
DOTTED = re.compile(r"\bstaticgraph(?:\.[A-Za-z_]\w*)+")
# A path in backticks: a file with its extension, or a folder with its trailing slash.
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|md|sh|csv|json|npz))?)`")
# Folders that paths on the pages may be relative to.
WITHIN = ("", "staticgraph", "staticgraph/store", "staticgraph/nn", "staticgraph/outofcore")


def resolved(name: str) -> bool:
    """Whether a dotted name is a module or a member of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            continue
        if found is None:
            continue
        value = importlib.import_module(module)
        for name in parts[length:]:
            if name in getattr(value, "__annotations__", {}):
                return True  # a field of a dataclass has no value on the class
            if not hasattr(value, name):
                return False
            value = getattr(value, name)
        return True
    return False


def unresolved(names: set[str]) -> list[str]:
    return sorted(name for name in names if not resolved(name.rstrip(".")))


def test_a_name_that_is_not_there_is_found():
    assert unresolved({"staticgraph.plans.plan.BucketPlan", "staticgraph.plans"}) == []
    gone = {"staticgraph.planning", "staticgraph.plans.plan.Gone", "staticgraph.BucketPlan.gone"}
    assert unresolved(gone) == sorted(gone)


def test_references_of_docstrings_resolve():
    for path in SOURCES:
        named = set(REFERENCE.findall(path.read_text()))
        assert not unresolved(named), f"{path.relative_to(ROOT)} refers to {unresolved(named)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_the_pages_resolve(page):
    text = page.read_text()
    named = set(DOTTED.findall(text))
    for module, given in re.findall(r"^\s*from (staticgraph[\w.]*) import ([\w, ]+)", text, re.M):
        named |= {f"{module}.{name.strip()}" for name in given.split(",")}
    assert not unresolved(named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_the_pages_lead_somewhere(page):
    for path in PATH.findall(page.read_text()):
        assert any((ROOT / room / path).exists() for room in WITHIN), f"{page.name}: {path}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_imports_of_the_benchmarks_resolve(script):
    named = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "staticgraph":
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            named |= {a.name for a in node.names if a.name.split(".")[0] == "staticgraph"}
    assert not unresolved(named)


def test_modules_that_the_check_looks_through_exist():
    """Their lines are not a model's; if a module moved, its lines would be taken for a model's."""
    assert not unresolved(set(watching._MACHINERY))
