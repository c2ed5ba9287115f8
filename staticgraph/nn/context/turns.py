"""Reports which block a loop over blocks is at, forward and backward, to a watching probe.

The problem: what is live while one of several blocks is computed depends on how many came before it
and how many follow, so a memory probe must know which block is running; the backward visits them
again without any loop. The idea: layers run their blocks through :func:`in_turn`, which reports
each block before it runs; hooks on a block's inputs and outputs report it in the backward.

Invariant: without a watcher, and inside a compiled step, it is a plain loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from torch import Tensor

from staticgraph.internals.dispatch import traced_here


class Turn(NamedTuple):
    """``block`` of the ``loop``-th loop since watching began; ``backward`` if in its backward."""

    loop: int
    backward: bool
    block: int


Tell = Callable[[Turn | None], None]


class _Here(threading.local):
    def __init__(self) -> None:
        self.tell: Tell | None = None
        self.loops = 0


_HERE = _Here()


@contextmanager
def watched(tell: Tell) -> Iterator[None]:
    """Reports every turn of loops in this thread, and of their backward in any thread, to ``tell``;
    None where a loop has ended."""
    before = _HERE.tell, _HERE.loops
    _HERE.tell, _HERE.loops = tell, 0
    try:
        yield
    finally:
        _HERE.tell, _HERE.loops = before


def in_turn(body: Callable[..., Tensor], blocks: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """Returns the results of ``body`` on each block's tensors, one after another."""
    if traced_here() or _HERE.tell is None:
        return [body(*tensors) for tensors in blocks]
    return list(_told(body, blocks, _HERE.tell))


def _told(
    body: Callable[..., Tensor], blocks: Iterable[tuple[Tensor, ...]], tell: Tell
) -> Iterator[Tensor]:
    loop, _HERE.loops = _HERE.loops, _HERE.loops + 1
    for number, tensors in enumerate(blocks):
        tell(Turn(loop, False, number))
        out = body(*tensors)
        if out.requires_grad:
            out.register_hook(partial(_say, tell, Turn(loop, True, number)))
            if number == 0:  # the last block in the backward
                for tensor in tensors:
                    if tensor.requires_grad:
                        tensor.register_hook(partial(_say, tell, None))
        yield out
    tell(None)


def _say(tell: Tell, turn: Turn | None, _: Tensor) -> None:
    tell(turn)
