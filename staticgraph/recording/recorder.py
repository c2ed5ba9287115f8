"""Recording work once and replaying it: the interface, and CUDA graphs behind it.

A recorder runs a function once while it notes every kernel and every address, and from then on
repeats just that: no Python, one launch. What follows from it holds for any backend: inputs must be
copied to the noted addresses, results appear at noted addresses, a number read on the host is noted
as it was. Because the interface is this small, everything around it (dispatch, slots, staleness,
teardown) is tested without a GPU against a backend that notes calls with their tensors and repeats
them on those tensors.

One pool and one stream serve all recordings of a runner: recordings that never run at once may
share memory. They share library workspaces too, so they are torn down together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class Recorded:
    """Work that can be repeated. ``result`` is what the function returned: tensors at fixed
    addresses, which every replay overwrites."""

    replay: Callable[[], None]
    result: Any
    replays: int = 0


class Recorder(Protocol):
    """A way to record.

    Attributes:
        compiles: whether the recorded function should be compiled first.
    """

    compiles: bool

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        """Runs the function for real, where it will be recorded."""
        ...

    def record(self, body: Callable[[], Any]) -> Recorded:
        """Records one run of the function.

        Raises:
            Exception: what the function did cannot be recorded; the recorder is unusable then.
        """
        ...

    def close(self) -> None:
        """Frees what the recordings share; they must not be replayed any more."""
        ...


class CudaGraphRecorder:
    """``torch.cuda.CUDAGraph`` on one stream kept for life, in one memory pool.

    Args:
        device: the CUDA device.
    """

    compiles = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        """On the recording stream, since autograd remembers the stream of each parameter's use."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            for _ in range(runs):
                body()
        present.wait_stream(self._stream)

    def record(self, body: Callable[[], Any]) -> Recorded:
        """One CUDA graph; whatever synchronises or allocates outside the pool raises."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = body()
        self._graphs.append(graph)
        return Recorded(graph.replay, result)

    def close(self) -> None:
        """Waits for the device, then frees all graphs and their pool."""
        torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = None
        torch.cuda.empty_cache()
