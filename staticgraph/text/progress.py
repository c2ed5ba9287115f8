"""How far something is: a bar on a terminal, and elsewhere a line now and then.

A bar is written over in place, a hundred times a minute. In a log, in the output of a cluster's
scheduler or under ``nohup`` nothing is written over, and each of these would be a line. So where
stderr is no terminal there is one plain line every :data:`EVERY_S` seconds, the first after so
long: what is done sooner says nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from types import TracebackType
from typing import Any, Protocol

EVERY_S = 10.0
WIDTH = 40
# Columns of a terminal that does not say how many it has.
UNTOLD = 80


class Bar(Protocol):
    """What a bar and lines have in common: iterated over, or told by hand."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def update(self, n: float | None = 1) -> Any:
        """So many more are done."""
        ...

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> Any:
        """Text to show next to the numbers."""
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
    """A bar over ``items``, or for ``total`` of something where it is told by hand.

    Args:
        items: what to iterate over.
        desc: what is going on.
        unit: what is counted, with a space before it.
        show: whether to say anything at all.
        total: how many there will be, where not as many as ``items``; not known where neither
            tells.
        initial: how many are done already.
    """
    count = len(items) if total is None and isinstance(items, Sized) else total
    if show and not on_terminal():
        return Lines(items, desc, unit, count, initial)
    from tqdm import tqdm  # takes half of what `staticgraph --help` does

    return tqdm(
        items, desc=desc, unit=unit, disable=not show, total=count, initial=initial,
        mininterval=0.5, leave=False, ncols=_columns(),
    )  # fmt: skip


def on_terminal() -> bool:
    """Whether stderr can be written over."""
    return sys.stderr.isatty()


def _columns() -> int | None:
    """The width for tqdm where it finds none: a container's terminal may say 0."""
    try:
        told = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal; a stream without a file
        return None
    return None if told else UNTOLD


# Where what is said is collected, for another process to say.
_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collects what :func:`say` is given in the block, in place of writing it: in a process whose
    stderr nobody sees."""
    lines: list[str] = []
    token = _HEARD.set(lines)
    try:
        yield lines
    finally:
        _HEARD.reset(token)


def say(text: str) -> None:
    """A line to stderr that leaves a bar below it whole."""
    collected = _HEARD.get()
    if collected is not None:
        collected.append(text)
    elif on_terminal():
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


class Lines:
    """A bar for where nothing can be written over."""

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
        """So many more are done."""
        self._done += int(n or 0)
        beside = f", {self._beside}" if self._beside else ""
        done = f"{self._done:,}" if self._total is None else f"{self._done:,} of {self._total:,}"
        self._status.show(f"{self._desc}: {done}{self._unit}{beside}")

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """Text to show next to the numbers, from the next line on."""
        self._beside = s


class Status:
    """How far something is whose end is not known: one line, or a line now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Says it, in place or if it is time."""
        if on_terminal():
            print(f"\r{text.ljust(max(WIDTH, self._width))}", end="", file=sys.stderr, flush=True)
            self._width = max(WIDTH, len(text))
        elif time.monotonic() - self._last >= EVERY_S:
            print(text, file=sys.stderr, flush=True)
            self._last = time.monotonic()

    def clear(self) -> None:
        """Makes room for a line that stays."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Says what is waited for while the block runs, and for how long it has been: for work that
    does not tell how far it is, such as a compiler's."""
    began, done, status = time.monotonic(), Event(), Status()
    every = 1.0 if on_terminal() else EVERY_S

    def tick() -> None:
        """Shows the seconds so far, until the work is done."""
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
