"""Runs programs in separate processes that do not import torch and PyG again.

A new interpreter takes four seconds of processor time before a program of this library begins. So
programs fork from a server (:mod:`support.fork_server`), which has imported everything and done
nothing else: it has no runner, cache, thread or setting of the test's process. Tests about the
start of a process (what an import loads, which variables are read while torch is imported, the exit
of an interpreter) still use :mod:`subprocess`.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.fork_server import process
from support.processor_time import add_elsewhere, own_processor_s


def run_forked(
    argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program; returns its output and exit status, negative if a signal ended it.

    Args:
        argv: arguments as for the interpreter: ``-c CODE ...``, ``-m MODULE ...`` or ``FILE ...``.
        timeout: seconds.
        env: its whole environment; None for that of this process.

    Raises:
        subprocess.TimeoutExpired: if it did not end in time; it is killed.
    """
    with tempfile.TemporaryDirectory(prefix="forked-") as name:
        said = [Path(name) / "out", Path(name) / "err"]
        given = dict(os.environ if env is None else env)
        spent = Path(name) / "spent"
        child = process(_run, list(argv), said, spent, given, os.getcwd())
        child.start()
        child.join(timeout)
        if child.is_alive():
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(list(argv), timeout)
        if spent.exists():  # missing if a signal ended the program
            add_elsewhere(float(spent.read_text()))
        out, err = (path.read_text() if path.exists() else "" for path in said)
        return subprocess.CompletedProcess(list(argv), child.exitcode or 0, out, err)


def _run(argv: list[str], said: list[Path], spent: Path, env: dict[str, str], folder: str) -> None:
    for stream, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    try:
        program(*argv)
    finally:
        spent.write_text(str(own_processor_s()))


def program(kind: str, *rest: str) -> None:
    """Runs in this process what an interpreter with these arguments would run."""
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")
