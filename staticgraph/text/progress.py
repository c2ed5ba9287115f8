"""Shows progress: a bar on a terminal, and elsewhere an occasional line.

A bar is redrawn in place, a hundred times a minute. In a log, in the output of a cluster's
scheduler or under ``nohup`` nothing can be redrawn, and every update would be a line. So if stderr
is not a terminal, there is one plain line every :data:`EVERY_S` seconds, the first after that
interval: shorter work prints nothing.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from types import TracebackType
from typing import Any, Protocol

EVERY_S = 2.0
WIDTH = 40
# Width of a terminal that does not report one.
UNTOLD = 80


class Bar(Protocol):
    """The common interface of a bar and of lines: iterated over, or updated by hand."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def update(self, n: float | None = 1) -> Any:
        """Advances by ``n``."""
        ...

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> Any:
        """Sets the text next to the numbers."""
        ...


def bar(
    items: Iterable[Any] = (),
    *,
    desc: str,
    unit: str,
    show: bool = True,
    total: int | None = None,
    initial: int = 0,
) -> Bar:
    """Returns a bar over ``items``, or for ``total`` items if it is updated by hand.

    Args:
        items: what to iterate over.
        desc: description of the work.
        unit: what is counted, with a leading space.
        show: whether to print anything at all.
        total: number of items, if it differs from the length of ``items``; unknown if neither is
            available.
        initial: how many are already done.
    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    if show and not on_terminal():
        return Lines(items, desc, unit, count, initial)
    from tqdm import tqdm  # takes half the time of `staticgraph --help`

    return tqdm(
        items, desc=desc, unit=unit, disable=not show, total=count, initial=initial,
        mininterval=0.5, leave=False, ncols=_columns(),
    )  # fmt: skip


def on_terminal() -> bool:
    """Returns whether stderr is a terminal, which can be redrawn."""
    return sys.stderr.isatty()


def _columns() -> int | None:
    """Returns the width for tqdm if it cannot find one: a container's terminal may report 0."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # not a terminal, or a stream without a file
        return None
    return None if columns else UNTOLD


# Collects messages for another process to print.
_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collects the messages of :func:`say` in the block instead of printing them.

    Meant for a process whose stderr nobody sees.
    """
    lines: list[str] = []
    token = _HEARD.set(lines)
    try:
        yield lines
    finally:
        _HEARD.reset(token)


def is_left_out(what: object, package: str) -> bool:
    """Whether a package that writes a file is not installed; says that the file is left out."""
    if importlib.util.find_spec(package) is not None:
        return False
    say(f"left out: {what}, since {package} is not installed (pip install {package})")
    return True


def say(text: str) -> None:
    """Prints a line to stderr without breaking a bar below it."""
    collected = _HEARD.get()
    if collected is not None:
        collected.append(text)
    elif on_terminal():
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


class Lines:
    """A bar for output that cannot be redrawn."""

    def __init__(
        self, items: Iterable[Any], desc: str, unit: str, total: int | None, initial: int
    ) -> None:
        self._items, self._desc, self._unit, self._total = items, desc, unit, total
        self._done, self._beside = initial, ""
        self._status = Status()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def update(self, n: float | None = 1) -> None:
        """Advances by ``n``."""
        self._done += int(n or 0)
        beside = f", {self._beside}" if self._beside else ""
        done = f"{self._done:,}" if self._total is None else f"{self._done:,} of {self._total:,}"
        self._status.show(f"{self._desc}: {done}{self._unit}{beside}")

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """Sets the text next to the numbers, from the next line on."""
        self._beside = s


class Status:
    """Progress of work whose end is unknown: one line on a terminal, an occasional line
    elsewhere."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Shows the text in place, or as a line if enough time has passed."""
        if on_terminal():
            print(f"\r{text.ljust(max(WIDTH, self._width))}", end="", file=sys.stderr, flush=True)
            self._width = max(WIDTH, len(text))
        elif time.monotonic() - self._last >= EVERY_S:
            print(text, file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def clear(self) -> None:
        """Clears the line for other output."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Shows a text and the elapsed time while the block runs.

    Meant for work that does not report progress, such as a compiler's.
    """
    began, done, status = time.monotonic(), Event(), Status()
    every = 1.0 if on_terminal() else EVERY_S

    def tick() -> None:
        """Shows the seconds so far until the work is done."""
        while not done.wait(every):
            status.show(f"{text}: {time.monotonic() - began:.0f} s")

    if on_terminal():
        status.show(text)
    else:
        say(text)
    ticking = Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        done.set()
        ticking.join()
        status.clear()
