"""Autograd graphs that are still held when a recording begins.

The problem: a loss kept from an earlier step (a notebook variable) holds the nodes that accumulate
each parameter's gradient, and these belong to the stream they were made on. A recorded backward
that meets them leaves its stream, which ends the capture with an error that names nothing. torch
notices this in the runs before, and warns. Here unreachable graphs are collected first, and the
warning becomes an error that says what to delete.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from staticgraph.errors import NotStatic

# The beginning of torch's warning (input_buffer.cpp).
MISMATCH = "The AccumulateGrad node's stream does not match"


@contextmanager
def no_kept_graphs() -> Iterator[None]:
    """A ``with`` block for the runs before a recording.

    Raises:
        NotStatic: something holds an autograd graph of the parameters.
    """
    gc.collect()
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once per process, and is silent the second time
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=MISMATCH, category=UserWarning)
            yield
    except UserWarning as warning:
        if MISMATCH not in str(warning):
            raise
        raise NotStatic(
            "a loss or an output of an earlier step is still held, and with it the autograd graph "
            "of these parameters, which belongs to another stream and cannot be recorded: delete "
            "it (del loss, out; in a notebook also Out and _), keep loss.detach() instead, or "
            "call warmup() before the first step. DistributedDataParallel holds such graphs, too: "
            "record the model itself, not its wrapper"
        ) from warning
    finally:
        torch.set_warn_always(always)
