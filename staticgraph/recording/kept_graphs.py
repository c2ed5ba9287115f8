"""Autograd graphs that somebody still holds when a recording begins.

The problem: a loss kept from before (a notebook's variable) holds the nodes that add up each
parameter's gradient, and these belong to the stream that they were made on. A recorded backward
that meets them leaves its stream, which ends the capture with an error that names nothing. torch
sees it in the runs before, and warns. Here what nobody can reach is collected first, and the
warning is an error that says what to delete.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from staticgraph.errors import NotStatic

# How torch (input_buffer.cpp) begins the warning.
MISMATCH = "The AccumulateGrad node's stream does not match"


@contextmanager
def no_kept_graphs() -> Iterator[None]:
    """For the runs before a recording.

    Raises:
        NotStatic: something holds an autograd graph of the parameters.
    """
    gc.collect()
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once a process, and the second time is silent
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
