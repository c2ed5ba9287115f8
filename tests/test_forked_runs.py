"""Tests side by side in processes that fork: every test once, reported as pytest reports it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import after_fork
from support.first_use import make_tables
from support.forked import run_forked
from support.forked_runs import pieces
from support.patience import patience

SUPPORT = Path(__file__).parent / "support"
# A run that needs no compiler and starts no ranks.
PROGRAM = """
import sys
import pytest
from support import forked_runs

forked_runs._make_what_all_need = lambda items: None
sys.exit(pytest.main([*sys.argv[1:], "-p", "no:cacheprovider"], plugins=[forked_runs]))
"""
FILE = """
import os, signal, sys, warnings
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def made():
    with open(os.environ["NOTED"], "a") as file:
        print("made", os.getpid(), file=file)

@pytest.mark.parametrize("number", range(6))
def test_passes(number, tmp_path):
    (tmp_path / "own").write_text("")
    with open(os.environ["NOTED"], "a") as file:
        print(tmp_path, file=file)

@pytest.mark.parametrize("number", range(3))
def test_shares(made, number):
    pass

def test_fails():
    print("what it said")
    assert 1 == 2, "said so"

def test_warns():
    warnings.warn("look here")

@pytest.mark.skip(reason="not today")
def test_skips():
    pass
"""
DIES = """
import os, signal

def test_before():
    pass

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""


def run(folder: Path, *words: str):
    """Run the files of a folder; return the finished process and the lines that its tests noted."""
    noted = folder / "noted"
    noted.write_text("")
    done = run_forked(
        ["-c", PROGRAM, str(folder), "--forks", "2", "--basetemp", str(folder / "temp"), *words],
        env=os.environ | {"NOTED": str(noted), "PYTHONPATH": str(SUPPORT.parent)},
        timeout=patience(30),
    )
    return done, noted.read_text().splitlines()


def test_every_test_runs_once_and_is_told_as_pytest_tells_it(tmp_path):
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(FILE)
    done, noted = run(tmp_path, "-rs")
    assert "2 failed, 20 passed, 2 skipped, 2 warnings" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    assert done.stdout.count("AssertionError: said so") >= 2
    assert done.stdout.count("what it said\n") == 2, "captured output is shown where one fails"
    assert "UserWarning: look here" in done.stdout
    assert "not today" in done.stdout
    folders = Counter(line for line in noted if not line.startswith("made"))
    assert len(folders) == 12
    assert set(folders.values()) == {1}, "no two tests have the same folder"
    made = [line for line in noted if line.startswith("made")]
    assert len(made) == 2, "what a file shares is made once a file"


def test_a_process_that_dies_fails_its_test_alone(tmp_path):
    (tmp_path / "test_dies.py").write_text(DIES)
    done, _ = run(tmp_path)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    how = f"test_dies: the process that ran this test died, exit status -{signal.SIGKILL.value}"
    assert how in done.stdout


def test_a_run_stops_where_it_was_told_to(tmp_path):
    for number in range(9):
        (tmp_path / f"test_{number}.py").write_text("def test_it():\n    assert False\n")
    done, _ = run(tmp_path, "--maxfail", "2")
    assert done.returncode == 1
    failed = re.search(r"(\d+) failed", done.stdout)
    assert failed is not None, done.stdout + done.stderr
    assert 2 <= int(failed[1]) < 9
    assert "stopping after 2 failures" in done.stdout


def item(name: str, *keywords: str, shares: bool = False) -> SimpleNamespace:
    fixtures = {"made": [SimpleNamespace(scope="module" if shares else "function")]}
    info = SimpleNamespace(name2fixturedefs=fixtures)
    return SimpleNamespace(nodeid=name, keywords=set(keywords), _fixtureinfo=info)


def test_what_takes_longest_is_given_out_first():
    """Slow tests are given out one by one, unless they share a fixture; others by the file."""
    items = [
        *(item(f"a.py::quick[{number}]") for number in range(3)),
        item("a.py::slow", "slow"),
        item("b.py::slower", "slow"),
        item("c.py::one", "slow", shares=True),
        item("c.py::other", "slow", shares=True),
        item("c.py::not seen yet", "slow"),
    ]
    seconds = {"a.py::slow": 1.0, "b.py::slower": 9.0, "c.py::one": 4.0, "c.py::other": 4.0}
    assert pieces(items, seconds) == [[4], [5, 6], [7], [3], [0, 1, 2]]
    assert pieces([], {}) == []


def test_no_test_is_lost_or_doubled(request: pytest.FixtureRequest):
    items = request.session.items
    given = [number for piece in pieces(items, {}) for number in piece]
    assert sorted(given) == list(range(len(items)))


def test_no_gradient_is_followed_back_before_the_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward would start torch's threads for a GPU's gradients, which a fork does not have."""
    ran: list[str] = []
    for name in ("grad", "backward"):
        stock = getattr(torch.autograd, name)
        noted = lambda *given, name=name, stock=stock, **named: (  # noqa: E731
            ran.append(name) or stock(*given, **named)
        )
        monkeypatch.setattr(torch.autograd, name, noted)
    make_tables()
    assert ran == []


def test_a_fork_makes_its_pool_of_threads_before_a_second_thread_can() -> None:
    """In a process that forks itself, and in one that is forked from the server."""
    child = os.fork()
    if child == 0:
        os._exit(after_fork.made_in != os.getpid())
    assert os.waitpid(child, 0)[1] == 0
    program = "import os; from support import after_fork; print(after_fork.made_in == os.getpid())"
    done = run_forked(["-c", program], timeout=patience(30))
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_the_pool_of_a_fork_is_one_thread() -> None:
    """However many threads torch uses in the parent process."""
    program = """
import os, torch
from support import after_fork
after_fork.begin()
torch.set_num_threads(3)
if os.fork() == 0:
    print(len(os.listdir("/proc/self/task")), torch.get_num_threads(), flush=True)
    os._exit(0)
os.wait()
"""
    paths = os.pathsep.join([str(SUPPORT.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": paths},
    )
    assert done.stdout == "1 3\n", done.stderr
