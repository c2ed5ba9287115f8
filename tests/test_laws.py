"""The page of laws: six laws, each guarded by tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "laws.md").read_text()
SECTIONS = dict(re.findall(r"^## (\d\. .+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
NAMED = re.compile(r"`(tests/[\w/.]+)::([\w:]+)`")


def defined_in(path: Path) -> set[str]:
    """The names that pytest would collect in a file; methods include their class."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else []
        for function, prefix in ((node, ""), *((one, f"{node.name}::") for one in inner)):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                found.add(prefix + function.name)
    return found


def test_there_are_six():
    assert [name[0] for name in SECTIONS] == list("123456")


@pytest.mark.parametrize("law", SECTIONS)
def test_every_law_says_what_it_means_how_it_breaks_and_what_holds_it(law):
    section = SECTIONS[law]
    for part in ("**For you:**", "**How it could break:**", "**Held by**"):
        assert section.count(part) == 1, part
    lines = section.partition("**Held by**")[2].split("\n- ")[1:]
    assert len(lines) >= 2
    assert all(NAMED.match(line) for line in lines), "each line begins with a test"


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_a_test_that_is_named_exists(file, name):
    path = ROOT / file
    assert path.name.startswith("test_")
    assert path.is_file(), f"docs/laws.md names {file}"
    assert name in defined_in(path), f"docs/laws.md names {name}, which {file} has not"


def test_a_name_inside_a_class_is_told_from_one_outside(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("def test_a(): ...\ndef b(): ...\nclass TestB:\n    def test_c(self): ...\n")
    assert defined_in(path) == {"test_a", "TestB::test_c"}
