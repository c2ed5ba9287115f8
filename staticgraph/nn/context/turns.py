"""Which block a loop over blocks is at, forward and backward, for whoever watches.

The problem: what is live while one block of several is computed depends on how many came before and
are yet to come, so a probe of memory must know at which it is; and backward goes through them again
without any loop. The idea: layers run their blocks by :func:`in_turn`, which says before each
whose turn it is; hooks on what a block gives and takes say so in the backward.

Invariant: where nobody watches, and inside a compiled step, it is a loop and nothing else.
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
    """``block`` of the ``loop``-th loop that ran since watching began; in its backward or not."""

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
    """Tells of every turn of loops in this thread and in their backward, in any thread; None where
    a loop has ended."""
    before = _HERE.tell, _HERE.loops
    _HERE.tell, _HERE.loops = tell, 0
    try:
        yield
    finally:
        _HERE.tell, _HERE.loops = before


def in_turn(body: Callable[..., Tensor], blocks: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """What ``body`` gives of each block's tensors, one after another."""
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
            if number == 0:  # the last in the backward
                for tensor in tensors:
                    if tensor.requires_grad:
                        tensor.register_hook(partial(_say, tell, None))
        yield out
    tell(None)


def _say(tell: Tell, turn: Turn | None, _: Tensor) -> None:
    tell(turn)
