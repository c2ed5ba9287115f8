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
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from typing import Any, Protocol

EVERY_S = 2.0
WIDTH = 40
# Width of a terminal that does not report one.
UNTOLD = 80


class Bar(AbstractContextManager[Any], Iterable[Any], Protocol):
    """What is used of tqdm's bar: iterated over, or updated by hand."""

    def update(self, n: float | None = 1) -> Any:
        """Advances by ``n``."""
        ...

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> Any:
        """Sets the text next to the numbers."""
        ...


def bar(
    items: Iterable[Any] | None = None,
    *,
    desc: str,
    unit: str,
    show: bool = True,
    total: int | None = None,
    initial: int = 0,
) -> Bar:
    """Returns a bar over ``items``, or for ``total`` items if it is updated by hand.

    Args:
        items: what to iterate over, if anything.
        desc: description of the work.
        unit: what is counted, with a leading space.
        show: whether to print anything at all.
        total: number of items, if it differs from the length of ``items``; unknown if neither is
            available.
        initial: how many are already done.
    """
    from tqdm import tqdm  # takes half the time of `staticgraph --help`

    count = len(items) if total is None and isinstance(items, Sized) else total
    options: dict[str, Any] = {"mininterval": 0.5, "ncols": _columns()}
    if show and not on_terminal():
        done = "{n:,}" if count is None else "{n:,} of {total:,}"
        options = {"mininterval": 0.1, "miniters": 1, "file": _Log()}
        options["bar_format"] = f"{{desc}}: {done}{{unit}}{{postfix}}"
    return tqdm(
        items, desc=desc, unit=unit, disable=not show, total=count, initial=initial, leave=False,
        **options,
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


class _Log:
    """A stream on which a bar is an occasional line."""

    def __init__(self) -> None:
        self._status = Status()

    def write(self, text: str) -> None:
        """Shows what a bar would be drawn as."""
        if shown := text.strip():
            self._status.show(shown)

    def flush(self) -> None:
        """Does nothing: a line is printed at once."""


@contextmanager
def waiting(text: str, show: bool = True) -> Iterator[None]:
    """Shows a text and the elapsed time while the block runs, unless ``show`` is False.

    Meant for work that does not report progress, such as a compiler's.
    """
    if not show:
        yield
        return
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
