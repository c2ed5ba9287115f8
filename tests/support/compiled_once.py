"""Lets processes that run tests in parallel compile each loop once in total, not once each.

With an empty numba cache, as in a fresh clone, the processes of a run begin with the same loops and
each would compile them: a loop takes a second of processor time, and there are three hundred.
Therefore the process that compiles a loop holds a lock of its name and types; other processes wait
and then find the loop in the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import dispatcher

# Ten times as long as the slowest loop takes to compile.
LONGEST_S = 60.0
_held: set[str] = set()


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Excludes all other processes of this user; reentrant within one process."""
    if name in _held:
        yield
        return
    folder = Path(tempfile.gettempdir()) / f"staticgraph-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / name).open("w") as file:
        _lock(file)
        _held.add(name)
        try:
            yield
        finally:
            _held.discard(name)


def _lock(file: Any) -> None:
    """Waits until no other process holds the lock, with a limit: compiling twice is harmless."""
    until = time.monotonic() + LONGEST_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(0.05)


def _compiled(stock: Any) -> Any:
    def compile(self: Any, kinds: Any) -> Any:
        if not getattr(self._cache, "cache_path", None):
            return stock(self, kinds)
        loop = f"{self.py_func.__code__.co_filename} {self.py_func.__qualname__} {kinds}"
        with _alone(hashlib.sha256(loop.encode()).hexdigest()[:32]):
            return stock(self, kinds)

    return compile


def begin() -> None:
    """Installs this in the current process."""
    dispatcher.Dispatcher.compile = _compiled(dispatcher.Dispatcher.compile)
