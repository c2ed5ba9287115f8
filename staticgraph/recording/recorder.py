"""Recording work once and replaying it: the interface, and its implementation with CUDA graphs.

A recorder runs a function once, noting every kernel and every address, and from then on repeats
exactly that: no Python, one launch. The consequences are the same for any backend: inputs must be
copied to the noted addresses, results appear at noted addresses, and a number read on the host
keeps its noted value. Because the interface is this small, everything around it (dispatch, slots,
staleness, teardown) is tested without a GPU against a backend that notes calls with their tensors
and repeats them on those tensors.

One pool serves all recordings of a runner, and one stream all those of a device: recordings that
never run at once may share memory. They share library workspaces too, so those of a runner are
freed together or not at all, and replays run one after another.

A loss kept from an earlier step (a notebook variable) holds the nodes that accumulate each
parameter's gradient, and these belong to the stream they were made on. A recorded backward that
meets them leaves its stream, which ends the capture with an error that names nothing. torch notices
this in the runs before, and warns. Here unreachable graphs are collected first, and the warning
becomes an error that says what to delete.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from staticgraph.errors import NotStatic
from staticgraph.recording.capture import captured, recording_stream


class Replays:
    """Counts the replays of all recordings that share memory.

    Temporary values of one may occupy the memory of another's results. So a result is valid only
    until the next replay of *any* of them, and one count is enough to tell.

    Attributes:
        count: how many replays have run.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int = 0

    def run(self, recorded: Recorded) -> None:
        """Replays a recording, and counts it."""
        self.count += 1
        recorded.replay()
        recorded.replays += 1


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


@dataclass(slots=True)
class Recorded:
    """Work that can be repeated.

    Attributes:
        replay: repeats it.
        result: what the function returned: tensors at fixed addresses, which every replay
            overwrites.
        replays: how often it was repeated.
        behind: called before its inputs are written: makes the write wait for the last replay, if
            that was on another stream. None where all work runs in the order it was queued in.
    """

    replay: Callable[[], None]
    result: Any
    replays: int = 0
    behind: Callable[[], None] | None = None


class Recorder(Protocol):
    """A way to record.

    Attributes:
        compiles: whether the recorded function should be compiled first.
    """

    compiles: bool

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        """Runs the function for real, on the stream where it will be recorded."""
        ...

    def record(self, body: Callable[[], Any]) -> Recorded:
        """Records one run of the function.

        Raises:
            Exception: what the function did cannot be recorded; the recorder is then unusable.
        """
        ...

    def close(self) -> None:
        """Frees what the recordings share; they must not be replayed any longer."""
        ...


class CudaGraphRecorder:
    """``torch.cuda.CUDAGraph`` on the device's recording stream, in one memory pool.

    Args:
        device: the CUDA device.
        error_mode: what other threads may do during a capture, as in ``torch.cuda.graph``: with
            ``global``, nothing that a capture cannot hold; with ``thread_local``, anything. With
            ``global`` a loader thread that waits for an event, or a thread that pins memory, would
            end the capture. torch's own graph trees use ``thread_local``, too
            (``torch/_inductor/cudagraph_trees``).
    """

    compiles = True

    def __init__(self, device: torch.device, error_mode: str = "thread_local") -> None:
        self._device = device
        self._error_mode = error_mode
        self._on = recording_stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        """Runs the function on the recording stream.

        Autograd remembers the stream of each parameter's use.

        Raises:
            NotStatic: something holds an autograd graph of another stream.
        """
        stream = self._on.stream
        with self._on.alone, no_kept_graphs():
            self._on.behind()
            present = torch.cuda.current_stream(self._device)
            stream.wait_stream(present)
            try:
                with torch.cuda.stream(stream):
                    for _ in range(runs):
                        body()
            finally:  # restoring after a failure must follow what was queued before it
                present.wait_stream(stream)

    def record(self, body: Callable[[], Any]) -> Recorded:
        """Captures one CUDA graph; synchronising or allocating outside the pool raises."""
        graph = torch.cuda.CUDAGraph()
        with self._on.alone:
            result = captured(graph, body, self._pool, self._on.stream, self._error_mode)
        self._graphs.append(graph)
        return Recorded(partial(self._on.replay, graph.replay), result, behind=self._on.behind)

    def close(self) -> None:
        """Waits for the device, then frees all graphs and their pool."""
        torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = None
        torch.cuda.empty_cache()
