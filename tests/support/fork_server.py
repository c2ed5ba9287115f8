"""The server that programs and ranks of tests fork from, and what each of them begins with.

A new interpreter takes four seconds of processor time before a program of this library begins, and
ten where it compiles. The server has paid that once (:mod:`support.preloaded`). What forks from it
is as a process that was just started: nothing of the test's process is in it but the function and
its arguments, and processes that it starts itself are of the kind that Python would take.
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
    """Starts the server unless it runs."""
    # It would look for what it imports beside the folder that it is started in alone.
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = os.pathsep.join([TESTS, *([before] if before else [])])
    try:
        forkserver._forkserver.ensure_running()  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def process(target: Callable[..., None], *args: Any, said: Path | None = None) -> Any:
    """A process that will fork from the server and run a function of a module's own level.

    Args:
        target: the function.
        args: whatever pickles.
        said: a file for all that it prints; else it prints where the server does.
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
    # Else what it starts, and each lock that it makes, would be of this server's kind: the names of
    # such locks are left where it is killed.
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environ)
    target(*args)


def show(said: Path) -> None:
    """What a process printed, where pytest shows it if the test fails."""
    if said.exists() and (text := said.read_text(errors="replace")):
        print(text, end="" if text.endswith("\n") else "\n")
