"""Inductor, its graph trees and its generated code; imported when asked for, since it takes
seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


def inductor(mode: str | None) -> Callable[..., Any]:
    """The compiler behind ``torch.compile(mode=...)``: of a graph and example inputs a callable."""
    return torch._TorchCompileInductorWrapper(mode, None, False)


def roots_of_trees(device_index: int) -> list[Any]:
    """The first recordings of torch's graph trees on a device; each node's ``children`` has lists
    of those that follow it."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(device_index, create_if_none_exists=False)
    return [] if manager is None else [root for roots in manager.roots.values() for root in roots]


def drop_trees() -> None:
    """Frees what torch's graph trees recorded. ``torch.compiler.reset()`` calls it, with more."""
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    reset_cudagraph_trees()


@dataclass(slots=True)
class Pieces:
    """How many pieces torch made ready to be recorded."""

    count: int = 0


@contextmanager
def counting_pieces() -> Iterator[Pieces]:
    """Counts, inside, the pieces of graphs that torch hands to its recorder."""
    from torch._inductor import compile_fx

    make, pieces = compile_fx.cudagraphify, Pieces()

    def counted(*args: Any, **kwargs: Any) -> Any:
        """Counts a piece, then makes it as torch does."""
        pieces.count += 1
        return make(*args, **kwargs)

    compile_fx.cudagraphify = counted
    try:
        yield pieces
    finally:
        compile_fx.cudagraphify = make


def generated_module(source: str) -> Any:
    """The module that Inductor loads of a source that it wrote."""
    from torch._inductor.codecache import PyCodeCache

    return PyCodeCache.load(source)
