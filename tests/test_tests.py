"""The tests themselves: what two files share is in tests/support, and the list of slow tests names
files that exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.tiers import listed

TESTS = Path(__file__).parent
IMPORTED = re.compile(r"^\s*(?:from|import) (?:tests\.)?(?:test_\w+|conftest)\b", re.MULTILINE)


def test_no_file_imports_from_a_file_of_tests():
    files = [*TESTS.rglob("*.py"), *(TESTS.parent / "bench").rglob("*.py")]
    assert [str(path) for path in files if IMPORTED.search(path.read_text())] == []


def test_what_is_shared_is_no_file_of_tests():
    """Interpreted kernels are tests that a child process runs by path."""
    assert [path.name for path in (TESTS / "support").rglob("test_*.py")] == []


def test_the_list_of_slow_tests_names_files_that_exist():
    files = {name.partition("::")[0] for name in listed()}
    assert [name for name in sorted(files) if not (TESTS.parent / name).is_file()] == []
