"""Processes that a test starts: forks of Python's own fork server, which has imported torch.

A process forked from it shares nothing with the test's process except the function and its
arguments.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "torch_geometric", "staticgraph.training.train", "tests.support.first_uses"]
)


def process(target: Callable[..., None], *args: Any, output: Path | None = None) -> Any:
    """Returns a process that will run a module-level function.

    Args:
        target: the function.
        args: its arguments, which must be picklable.
        output: a file for everything that it prints; None prints where the server prints.
    """
    return CONTEXT.Process(target=_start, args=(target, dict(os.environ), output, args))


def _start(
    target: Callable[..., None], environ: dict[str, str], output: Path | None, args: Any
) -> None:
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    # Otherwise its processes and locks would use the forkserver method, whose locks leave their
    # names in the system if the process is killed.
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environ)
    target(*args)


def show(output: Path) -> None:
    """Prints what a process printed, so that pytest shows it if the test fails."""
    if output.exists() and (text := output.read_text(errors="replace")):
        print(text, end="" if text.endswith("\n") else "\n")
