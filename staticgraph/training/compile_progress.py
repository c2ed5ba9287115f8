"""Shows which kernels numba compiles: the first run of a machine spends half a minute on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from staticgraph.text.progress import Status

KIND = "numba:compile"


class _Shown(event.Listener):
    """Shows the loop that is being compiled, and how many were."""

    def __init__(self) -> None:
        self._status, self._count = Status(), 0

    def on_start(self, event: Any) -> None:
        """Called before a loop is compiled."""
        name = event.data["dispatcher"].py_func.__name__.strip("_")
        self._count += 1
        self._status.show(f"compiling kernels for this and later runs: {self._count}, {name}")

    def on_end(self, event: Any) -> None:
        """Clears the line for other output."""
        self._status.clear()


@contextmanager
def shown_compilation(show: bool) -> Iterator[None]:
    """Shows on stderr what numba compiles within the block; nothing where it is cached."""
    if not show:
        yield
        return
    with event.install_listener(KIND, _Shown()):
        yield
