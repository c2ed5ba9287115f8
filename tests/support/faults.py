"""Runs an action with a fault at its first call of some functions, then at the second, to its end.

As SQLite tests its behaviour without memory or disk space: nothing is chosen by hand, so every
place is tried. A fault is an error that a call raises in place of its work, or the death of the
process before it.
"""

from __future__ import annotations

import errno
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

# Calls that create, move, remove or flush names and files; no state in between is visible.
CALLS = ("open", "mkdir", "link", "fsync", "replace", "rename", "unlink", "rmdir", "fchmod")
# Without those that only clean up: what they could not remove, the next process does.
WRITES = [(os, name) for name in CALLS if name not in ("unlink", "rmdir")]
# In the list of places: every operation of torch.
OPERATIONS = (TorchDispatchMode, "operations")

Place = tuple[object, str]


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def no_memory() -> RuntimeError:
    return RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")


def no_thread() -> RuntimeError:
    return RuntimeError("can't start new thread")


class Countdown:
    """A ``with`` block in which the k-th call of the places fails, counted from 0.

    Attributes:
        calls: the number of calls so far.
        hit: whether one has failed.
    """

    def __init__(self, k: int, places: Sequence[Place], fail: Callable[[], BaseException]) -> None:
        self._k, self._places, self._fail = k, places, fail
        self.calls, self.hit = 0, False
        self._undo = ExitStack()

    def count(self) -> None:
        self.calls += 1
        if self.calls == self._k + 1:
            self.hit = True
            raise self._fail()

    def __enter__(self) -> Countdown:
        patch = self._undo.enter_context(pytest.MonkeyPatch.context())
        for owner, name in self._places:
            if (owner, name) == OPERATIONS:
                self._undo.enter_context(_Operations(self.count))
                continue
            patch.setattr(owner, name, self._counted(getattr(owner, name)))
        return self

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*args: Any, **options: Any) -> Any:
            self.count()
            return call(*args, **options)

        return calling

    def __exit__(self, *exc: object) -> None:
        self._undo.close()


class _Operations(TorchDispatchMode):
    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._count()
        return func(*args, **(kwargs or {}))


def every_fault(
    action: Callable[[], object],
    places: Sequence[Place] = WRITES,
    fail: Callable[[], BaseException] = no_space,
    step: int = 1,
) -> Iterator[BaseException | None]:
    """Lets the first call fail, then the second, and so on, until the action runs through.

    Yields what the action raised, after each fault; and last, after it ran through, None.

    Args:
        action: what is run; what it changes is there when this yields.
        places: the functions that fail.
        fail: makes the error.
        step: leaves out all but every so many-th call.
    """
    k = 0
    while True:
        ends: list[BaseException | None] = [None]
        with Countdown(k, places, fail) as countdown:
            try:
                action()
            except Exception as error:
                ends = [error]
                if not countdown.hit:
                    raise
        yield ends.pop()  # held by nobody here, as are the frames that it came through
        if not countdown.hit:
            return
        k += step


def every_kill(action: Callable[[], object], step: int = 1) -> Iterator[bool]:
    """Kills the action before its first file system change, its second, and so on to the last.

    Yields whether it was killed, after each time; and last, after it ran through, False.
    """
    k = 0
    while killed_before(k, action):
        yield True
        k += step
    yield False


def killed_before(k: int, action: Callable[[], object]) -> bool:
    """Returns whether a child was killed; False if it made fewer calls and succeeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            with Countdown(k, [(os, name) for name in CALLS], _die):
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


def _die() -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")
