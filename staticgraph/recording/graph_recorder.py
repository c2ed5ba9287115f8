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

The problem of streams: cuBLAS keeps a workspace for every stream and thread that it was called on
(32 MiB on Hopper), so a new stream for every warm-up would add one each time. And autograd
remembers the stream of a parameter's first use. The idea: one stream per device, for the life of
the process, which every recorder uses.

torch hands out 32 streams in turn, then the first again: a loader's copy on the recording stream
would be captured, and repeated at every replay. Streams of another priority are another 32.

Recordings share their input and their pool, and may not run concurrently. The invariant: a replay
runs after the last one, whatever stream that was on, and so does the copy of its batch, which would
otherwise overtake the replay that still reads the previous batch; and nobody else uses the stream
during a recording.

A capture leaves nothing behind in the process. What the graph reads must come from its pool.
cuBLAS's workspaces are process-wide: if they were allocated before the capture, whoever drops them
(torch's graph trees around each of theirs, some releases wherever a graph of the stream ends,
pytorch/pytorch#193402) frees memory that every replay writes to. So they are dropped before, the
capture allocates new ones from the pool, and these are dropped after (``clear_cublas_manager`` in
``torch/_inductor/cudagraph_trees.py``). Garbage collection is off during a capture: destroying an
unreachable graph would end the capture (pytorch/pytorch#161037), and destroying an unreachable
batch would record its event.

The problem of failing: where the work cannot be captured, ``torch.cuda.graph`` raises a second time
as it ends the capture. That second exception hides the first, which names the cause; its stream and
device stay current; the allocator goes on waiting for the end of the capture; and up to torch 2.12
the random generator stays in its capturing state, so that the next dropout, anywhere in the
process, fails an assertion. An empty capture that ends normally resets the generator.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from staticgraph.errors import NotStatic
from staticgraph.internals import memory

# Nobody in this library but the recordings takes streams of this priority.
PRIORITY = -1


class RecordingStream:
    """See the module; get one with :func:`recording_stream`.

    Attributes:
        stream: the stream to warm up and record on.
        alone: the lock that is held while doing so.
    """

    __slots__ = ("_device", "_last", "alone", "stream")

    def __init__(self, device: torch.device) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=PRIORITY)
        self.alone: AbstractContextManager[bool] = threading.RLock()
        self._device = device
        self._last: torch.cuda.Stream | None = None

    def replay(self, launch: Callable[[], None]) -> None:
        """Launches a recording on the current stream, after the last replay."""
        with self.alone:
            self._last = self._behind()
            launch()

    def behind(self) -> None:
        """Makes what is queued on the current stream from now on wait for the last replay."""
        with self.alone:
            present = self._behind()
            if self._last is not None:
                self._last = present  # it waits for the last replay now

    def _behind(self) -> torch.cuda.Stream:
        present = torch.cuda.current_stream(self._device)
        if self._last is not None and self._last != present:
            present.wait_stream(self._last)
        return present


_MADE: dict[int, RecordingStream] = {}
_MAKING = threading.Lock()


def recording_stream(device: torch.device) -> RecordingStream:
    """Returns a device's recording stream, made at the first call."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _MAKING:
        if index not in _MADE:
            _MADE[index] = RecordingStream(torch.device("cuda", index))
        return _MADE[index]


# Graphs whose capture failed, kept alive: torch's pinned-memory allocator queries each of them at
# every later allocation, by a stored address (``CUDAGraph::create_allocate_filter``).
_ASKED_FOR_EVER: list[torch.cuda.CUDAGraph] = []
# What other threads may do during a capture: with ``global`` a loader thread that waits for an
# event, or a thread that pins memory, would end it. torch's own graph trees use this one, too
# (``torch/_inductor/cudagraph_trees``).
ERROR_MODE = "thread_local"


def captured(
    graph: torch.cuda.CUDAGraph,
    body: Callable[[], Any],
    pool: Any,
    stream: torch.cuda.Stream,
) -> Any:
    """Captures one run of a function, and returns what it returned.

    Raises:
        Exception: the first that was raised, with later ones added as notes. The process is as
            usable as before.
    """
    assert stream.priority == PRIORITY, "a loader's copies could be on this stream"
    # Setting a stream also sets its device, so the caller's own stream comes last.
    present = torch.cuda.current_stream(stream.device), torch.cuda.current_stream()
    first: BaseException | None = None
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=ERROR_MODE)
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
    _put_right(graph, pool, stream, first)
    raise first


@contextmanager
def _own_workspaces() -> Iterator[None]:
    memory.drop_workspaces()
    try:
        yield
    finally:
        memory.drop_workspaces()


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
    graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream, error: BaseException
) -> None:
    _ASKED_FOR_EVER.append(graph)
    # Raises if the capture did end, or never began; then there is nothing to release.
    with suppress(Exception):
        memory.end_allocations(stream.device.index, pool)
        memory.release(stream.device.index, pool)
    with suppress(Exception):
        graph.reset()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            # On another stream, unaffected by whatever the failed one still holds.
            aside = stream
            while aside == stream:
                aside = torch.cuda.Stream(stream.device, priority=PRIORITY)
            with torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=aside, capture_error_mode=ERROR_MODE
            ):
                pass
    except Exception as further:
        error.add_note(
            "the random generator may be left as during a capture, so that dropout fails "
            f"(start the process again): {type(further).__name__}: {further}"
        )


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
    """

    compiles = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
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
            result = captured(graph, body, self._pool, self._on.stream)
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
