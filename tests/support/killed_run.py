"""Trains in a process that kills itself at its n-th call of a function of ``os``.

The process forks from the fork server (:mod:`support.fork_server`), not from the test's process: if
torch is built for GPUs, a fork of a process that ran a backward pass cannot run one.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support.fork_server import process, show


def killed_at(
    call: str, number: int, partly: bool, train: Callable[..., None], *args: object
) -> bool:
    """Returns whether it was killed; False if it made fewer calls and succeeded.

    Args:
        call: the name of a function of ``os``.
        number: number of the last call, from 1.
        partly: whether that call is carried out; ``pwrite`` then writes only the first half.
        train: a module-level function.
        args: its arguments, which must be picklable.

    Raises:
        AssertionError: if it failed; its output is printed.
    """
    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        output = Path(name) / "said"
        child = process(_run, call, number, partly, train, args, output=output)
        child.start()
        child.join()
        if child.exitcode == -signal.SIGKILL:
            return True
        show(output)
        assert child.exitcode == 0, f"exit status {child.exitcode}"
        return False


def _run(call: str, number: int, partly: bool, train: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)  # as in the test's process
    real, seen = getattr(os, call), [0]

    def fatal(*arguments: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            if partly and call == "pwrite":
                real(arguments[0], arguments[1][: arguments[1].nbytes // 2], arguments[2])
            elif partly:
                real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    setattr(os, call, fatal)
    train(*args)
