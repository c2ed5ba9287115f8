"""One capture, and what one that failed leaves behind in the process, put right.

What the graph reads must be the pool's. cuBLAS's workspaces are the process's: where they were
taken before the capture, whoever drops them (torch's graph trees around each of theirs, some
releases wherever a graph of the stream ends, pytorch/pytorch#193402) gives memory away that every
replay writes to. So they are dropped before, the capture takes its own from the pool, and these are
dropped after (``clear_cublas_manager`` in ``torch/_inductor/cudagraph_trees.py``). And nothing is
collected meanwhile: an unreachable graph that ends inside ends the capture
(pytorch/pytorch#161037), an unreachable batch would have its event recorded.

The problem of failing: where the work cannot be captured, ``torch.cuda.graph`` raises a second time
as it ends the capture. What it raises then hides the first error, which is the one that names the
cause; its stream and device stay the present ones; the allocator goes on waiting for the capture's
end; and up to torch 2.12 the random generator stays in its capturing state, so that the next
dropout, anywhere in the process, fails an assertion. An empty capture that ends as it should brings
the generator back.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from staticgraph.internals import memory_pool

# Graphs whose capture failed: torch's allocator of pinned memory asks each of them at every later
# allocation, by an address that it keeps (``CUDAGraph::create_allocate_filter``).
_ASKED_FOR_EVER: list[torch.cuda.CUDAGraph] = []


def captured(
    graph: torch.cuda.CUDAGraph,
    body: Callable[[], Any],
    pool: Any,
    stream: torch.cuda.Stream,
    error_mode: str,
) -> Any:
    """Captures one run of a function, and returns what it returned.

    Raises:
        Exception: the first that was raised; what followed from it is added as notes. The process
            is usable as before.
    """
    # To set a stream is to choose its device: the caller's own comes last.
    present = torch.cuda.current_stream(stream.device), torch.cuda.current_stream()
    first: BaseException | None = None
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=error_mode)
    try:
        with _own_workspaces(), _nothing_collected(), capture:
            try:
                return body()
            except BaseException as error:
                first = error
                raise
    except BaseException as error:
        if first is None:
            first = error
        elif error is not first:
            first.add_note(f"the capture could not be ended: {type(error).__name__}: {error}")
    for was in present:
        torch.cuda.set_stream(was)
    _put_right(graph, pool, stream.device, first)
    raise first


@contextmanager
def _own_workspaces() -> Iterator[None]:
    memory_pool.drop_workspaces()
    try:
        yield
    finally:
        memory_pool.drop_workspaces()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _put_right(
    graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device, error: BaseException
) -> None:
    _ASKED_FOR_EVER.append(graph)
    # Raises where the capture was ended after all, or never begun; then nothing is to be given up.
    with suppress(Exception):
        memory_pool.end_allocations(device.index, pool)
        memory_pool.release(device.index, pool)
    with suppress(Exception):
        graph.reset()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            # On another stream: what the failed one still holds is not this capture's affair.
            aside = torch.cuda.Stream(device)
            with torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=aside, capture_error_mode="thread_local"
            ):
                pass
    except Exception as further:
        error.add_note(
            "the random generator may be left as during a capture, so that dropout fails "
            f"(start the process again): {type(further).__name__}: {further}"
        )
