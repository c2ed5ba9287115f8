"""What a capture that failed leaves behind in the process, put right.

The problem: where the work cannot be captured, ``torch.cuda.graph`` raises a second time as it
ends the capture. What it raises then hides the first error, which is the one that names the cause;
its stream stays the present one; the allocator goes on waiting for the capture's end; and up to
torch 2.12 the random generator stays in its capturing state, so that the next dropout, anywhere in
the process, fails an assertion. An empty capture that ends as it should brings the generator back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from staticgraph.internals import memory_pool


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
    present = torch.cuda.current_stream(stream.device)
    first: BaseException | None = None
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=error_mode):
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
    torch.cuda.set_stream(present)
    _put_right(graph, pool, stream.device, first)
    raise first


def _put_right(
    graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device, error: BaseException
) -> None:
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
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(device)):
                pass
    except Exception as further:
        error.add_note(
            "the random generator may be left as during a capture, so that dropout fails "
            f"(start the process again): {type(further).__name__}: {further}"
        )
