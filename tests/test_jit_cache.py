"""Importing with a read-only home and package, with or without a temporary folder. Root may write
everywhere, so a child process simulates the refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import patience

import staticgraph

REFUSING = """
import os, sys, tempfile
closed = [os.path.realpath(p) for p in sys.argv[1].split(os.pathsep)]
def guarded(inner):
    def call(*args, **kwargs):
        where = os.path.realpath(os.fspath(kwargs.get("dir") or (args[0] if args else "/")))
        if any(where == p or where.startswith(p + os.sep) for p in closed):
            raise PermissionError(30, "Read-only file system", where)
        return inner(*args, **kwargs)
    return call
tempfile.TemporaryFile = guarded(tempfile.TemporaryFile)
os.makedirs = guarded(os.makedirs)
if sys.argv[2] == "none":
    def refuse(*args, **kwargs):
        raise FileNotFoundError(2, "No usable temporary directory found")
    tempfile.mkdtemp = refuse
"""
WORKS = """
import numpy as np
import staticgraph.packing.placement
from staticgraph.packing.random import shuffle
shuffle(items := np.arange(3), np.uint64(0))
assert sorted(items) == [0, 1, 2]
print("shuffled", os.environ.get("NUMBA_CACHE_DIR"))
"""


def child(tmp_path: Path, temporary: str, code: str) -> subprocess.CompletedProcess[str]:
    package = str(Path(staticgraph.__file__).parent)
    closed = os.pathsep.join([package, str(tmp_path / "home")])
    unset = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment |= {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", REFUSING + code, closed, temporary],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(package).parent,
        timeout=patience(60),
    )


QUIET = """
import types
sys.modules["staticgraph.files.jit_cache"] = quiet = types.ModuleType("staticgraph.files.jit_cache")
quiet.ensure = lambda: None
"""


def test_numba_itself_refuses_there(tmp_path):
    """The simulated file system really breaks numba; otherwise the tests below show nothing."""
    done = child(tmp_path, "some", QUIET + WORKS)
    assert done.returncode != 0
    assert "no locator available" in done.stderr


@pytest.mark.parametrize("first", ["", "import numba\n"], ids=["numba after", "numba before"])
def test_a_temporary_folder_is_taken_with_one_warning_and_removed(tmp_path, first):
    done = child(tmp_path, "some", first + WORKS)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.split()[-1])
    assert folder.parent == tmp_path
    assert done.stderr.count("UserWarning") == 1
    assert f"compiled loops are kept in {folder}" in done.stderr
    assert not folder.exists()


def test_without_any_folder_nothing_is_cached(tmp_path):
    done = child(tmp_path, "none", WORKS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["shuffled", "None"]
    assert "compiled again by every process" in done.stderr


def test_where_a_place_can_be_written_nothing_is_changed(tmp_path, monkeypatch, recwarn):
    from staticgraph.files import jit_cache

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    jit_cache.ensure()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    jit_cache.ensure()
    assert "NUMBA_CACHE_DIR" not in os.environ
    assert not recwarn.list
