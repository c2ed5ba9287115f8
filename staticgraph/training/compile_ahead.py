"""Compiles the loops of a training run before its first step, several at a time.

numba compiles a loop when it is first called, one after the other and without any output: the first
step took half a minute. The loops that a run calls, and their argument types, are known beforehand
(:mod:`staticgraph.training.loops`). So the loops that are not in numba's cache are compiled by as
many child processes as there are cores, which write them to the cache for this process to load; a
progress bar names the loop that was finished last.

A loop that is not in the list, or fails here, is compiled at its first call: only the time depends
on this module. Children are forked, since a new process would have to import torch; on a platform
without fork, loops are compiled at their first call.
"""

from __future__ import annotations

import importlib
import os
import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from numba.core import event

from staticgraph.text.how_many import how_many
from staticgraph.text.progress import bar, say

NUMBER = struct.Struct("i")


class Loop(NamedTuple):
    """A compiled function and the types of one call of it.

    Attributes:
        name: the dotted name of module and function.
        types: the numba types of the arguments.
    """

    name: str
    types: tuple[Any, ...]

    @property
    def dispatcher(self) -> Any:
        """The numba dispatcher of the function."""
        module, _, function = self.name.rpartition(".")
        return getattr(importlib.import_module(module), function)


class _NotCached(Exception):
    """A loop is not in the cache and would be compiled now."""


class _Refusing(event.Listener):
    """Refuses compilations in this thread; other threads may compile."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        """Refuses a compilation in the thread that created this listener."""
        if threading.get_ident() == self.thread:
            raise _NotCached

    def on_end(self, event: Any) -> None:
        """Required by numba; does nothing."""


@contextmanager
def _from_cache_alone() -> Iterator[None]:
    listener = _Refusing()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


def not_cached(loops: Sequence[Loop]) -> list[Loop]:
    """The loops that are not in the cache; the others are loaded from it."""
    missing = []
    with _from_cache_alone():
        for loop in loops:
            try:
                loop.dispatcher.compile(loop.types)
            except _NotCached:
                missing.append(loop)
    return missing


def compile_ahead(loops: Sequence[Loop], *, show: bool = True, processes: int = 0) -> int:
    """Compiles the loops that are not in the cache, and loads all of them.

    Args:
        loops: longest to compile first, so that the children end at about the same time.
        show: show a bar on stderr, with the name of the loop that was finished last.
        processes: the number of children; 0 for one per core.

    Returns:
        The number of loops that were compiled.
    """
    missing = not_cached(loops)
    if not missing or not hasattr(os, "fork"):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    children, finished = min(processes or cores or 1, len(missing)), 0
    if show:
        across = "" if children == 1 else f" in {how_many(children, 'process')}"
        say(f"compiling {how_many(len(missing), 'kernel')}{across}, for this and later runs")
    with bar(total=len(missing), desc="compiling kernels", unit="", show=show) as shown:
        for number in _compiled(missing, children):
            shown.set_postfix_str(missing[number].name.rpartition(".")[2].strip("_"))
            shown.update(1)
            finished += 1
    not_cached(missing)  # loads them
    return finished


def _compiled(loops: Sequence[Loop], processes: int) -> Iterator[int]:
    """Yields the indices of loops as children finish them."""
    # One pipe holds the indices to compile, from which each child takes the next; finished indices
    # come back through the other, which reaches its end once no child holds it open.
    todo, give = os.pipe()
    done, tell = os.pipe()
    os.write(give, b"".join(map(NUMBER.pack, range(len(loops)))))
    os.close(give)
    children = [_child(loops, todo, done, tell) for _ in range(processes)]
    os.close(todo)
    os.close(tell)
    try:
        while len(word := os.read(done, NUMBER.size)) == NUMBER.size:
            yield NUMBER.unpack(word)[0]
    finally:
        os.close(done)
        for child in children:
            os.waitpid(child, 0)


def _child(loops: Sequence[Loop], todo: int, done: int, tell: int) -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork with threads: the child only compiles, and takes none of their
        # locks except numba's own, which is free here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    try:
        os.close(done)
        while len(word := os.read(todo, NUMBER.size)) == NUMBER.size:
            loop = loops[NUMBER.unpack(word)[0]]
            loop.dispatcher.compile(loop.types)
            os.write(tell, word)
    finally:
        os._exit(0)
