"""The server that programs and ranks of tests fork from, and how each of them starts.

A new interpreter takes four seconds of processor time before a program of this library begins, and
ten if it compiles. The server does that once (:mod:`support.preloaded`). A process forked from it
is like one that was just started: it shares nothing with the test's process except the function and
its arguments, and it starts processes of its own with Python's default method.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["support.preloaded"])
TESTS = str(Path(__file__).parents[1])
VARIABLE = "PYTHONPATH"


def ensure_running() -> None:
    """Starts the server unless it is running."""
    # Otherwise it would find imports only in the folder that it is started in.
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = os.pathsep.join([TESTS, *([before] if before else [])])
    try:
        forkserver._forkserver.ensure_running()  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def process(target: Callable[..., None], *args: Any, said: Path | None = None) -> Any:
    """Returns a process that will fork from the server and run a module-level function.

    Args:
        target: the function.
        args: its arguments, which must be picklable.
        said: a file for everything that it prints; None prints where the server prints.
    """
    ensure_running()
    return CONTEXT.Process(target=_as_started, args=(target, dict(os.environ), said, args))


def _as_started(
    target: Callable[..., None], environ: dict[str, str], said: Path | None, args: Any
) -> None:
    if said is not None:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    # Otherwise its processes and locks would use the forkserver method, whose locks leave their
    # names in the system if the process is killed.
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environ)
    target(*args)


def show(said: Path) -> None:
    """Prints what a process printed, so that pytest shows it if the test fails."""
    if said.exists() and (text := said.read_text(errors="replace")):
        print(text, end="" if text.endswith("\n") else "\n")
