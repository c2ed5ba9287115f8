"""Processes that run tests side by side compile each loop once, not once each.

Where numba's cache is empty, as on a fresh clone, the processes of a run begin with the same loops,
and each would compile them for itself: a loop takes a second of processor time, and there are three
hundred. So who compiles one holds a lock of its name and types meanwhile; whoever else needs it
waits, and finds it in the cache.
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

# What takes longest to compile takes a tenth of it.
LONGEST_S = 60.0
_held: set[str] = set()


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Of all processes of this user; a second time in one of them, at once."""
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
    """Waits until no other process holds it, but not for ever: to compile twice does no harm."""
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
    """From now on, in this process."""
    dispatcher.Dispatcher.compile = _compiled(dispatcher.Dispatcher.compile)
