"""Runs an action in a child process that is killed before its k-th file system change."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator

# Calls that create, move, remove or flush names and files; no state in between is visible.
CALLS = ("open", "mkdir", "link", "fsync", "replace", "rename", "unlink", "rmdir", "fchmod")


def killed_before(k: int, action: Callable[[], object]) -> bool:
    """Returns whether the child was killed; False if it made fewer calls and succeeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            _count_down(k)
            action()
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return False


def every_kill(action: Callable[[], object], step: int = 1) -> Iterator[int]:
    """Kills the action before its first call, its second, and so on to the last.

    Yields after each kill, and once more after the action ran to its end.

    Args:
        action: what the child does.
        step: leaves out all but every so many-th call.
    """
    k = 0
    while killed_before(k, action):
        yield k
        k += step
    yield k


def _count_down(k: int) -> None:
    done = 0

    def counted(call):
        def calling(*args, **options):
            nonlocal done
            if done == k:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return call(*args, **options)

        return calling

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
