"""One process per run folder: the error names the other process, and a dead one does not block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import refusal
from support.examples import EXAMPLES

from staticgraph.errors import FolderInUse
from staticgraph.files.folder_lock import NAME, folder_lock

HOLDS = """
import sys, time
from staticgraph.files.folder_lock import folder_lock
with folder_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start another process that holds a folder until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_other_process_is_named_and_a_killed_one_is_not_in_the_way(tmp_path, capsys):
    other = holder(tmp_path)
    with pytest.raises(FolderInUse, match=rf"in use by process {other.pid}, .* another --out"):
        folder_lock(tmp_path).__enter__()
    esol, triples = (str(EXAMPLES / name) for name in ("esol.npz", "FB15k-237.npz"))
    for words in (["train", "--data", esol], ["train-large", "--task", "link", "--data", triples],
                  ["train", "--resume"]):  # fmt: skip
        if "--resume" in words:
            (tmp_path / "checkpoint.pt").touch()
        err = refusal([*words, "--out", str(tmp_path)], capsys)
        assert f"in use by process {other.pid}," in err
        assert len(err.splitlines()) == 1
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / NAME).exists()
    with folder_lock(tmp_path):
        assert (tmp_path / NAME).read_text().split()[0] == str(os.getpid())
    assert not (tmp_path / NAME).exists()


def test_a_child_that_outlives_a_run_does_not_hold_its_folder(tmp_path):
    reader, writer = os.pipe()
    with folder_lock(tmp_path):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes the pipe
            os._exit(0)
        # The parent still has the lock, whatever the child closed, against itself too.
        with pytest.raises(FolderInUse, match=f"process {os.getpid()},"):
            folder_lock(tmp_path).__enter__()
    with folder_lock(tmp_path):
        pass
    os.close(writer)
    os.close(reader)
    os.waitpid(child, 0)


def test_a_folder_made_for_nothing_is_removed(tmp_path):
    with folder_lock(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()
    with folder_lock(tmp_path / "run"):
        (tmp_path / "run" / "report.json").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["report.json"]
