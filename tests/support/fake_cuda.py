"""Imitates ``torch.cuda``'s captures without a GPU, including how they fail.

As on CUDA: a stream stays current on its device until it is restored, and setting a stream sets its
device; a capture holds one stream; work that cannot be captured invalidates it, and its end then
raises before the stream is restored; the allocator and the random generator stay in their capturing
state until a capture ends correctly. The bodies actually run, on the CPU.
"""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import contextmanager
from typing import Any

import torch


class FakeCuda:
    """Replaces the functions that a recorder calls.

    Attributes:
        device: the index of the current device.
        present: the current stream of that device.
        capturing: whether the generator believes that a capture is running.
        pools: pools from which the allocator serves a capture.
        modes: ``capture_error_mode`` of every capture.
        log: the operations, in order.
        invalid: whether the running capture has been invalidated.
    """

    def __init__(self) -> None:
        self.device = 0
        self.default = FakeStream(self, "default")
        self._presents = {0: self.default}
        self.streams: list[FakeStream] = []
        self.capturing = False
        self.invalid = False
        self.pools: set[Any] = set()
        self.modes: list[str] = []
        self.log: list[str] = []
        self.breaks_every_capture = False
        self._handles = 0
        self._pools: dict[tuple[int, int], deque[FakeStream]] = defaultdict(deque)

    def install(self, monkeypatch: Any) -> FakeCuda:
        """Patches ``torch.cuda``, and forgets the streams of earlier recordings."""
        from staticgraph.recording import graph_recorder as stream

        for name, value in {
            "Stream": self._stream,
            "current_stream": self._current,
            "set_stream": self._set_stream,
            "stream": self._use,
            "current_device": lambda: self.device,
            "graph_pool_handle": self._handle,
            "CUDAGraph": lambda: FakeGraph(self),
            "graph": lambda *args, **kwargs: FakeCapture(self, *args, **kwargs),
            "synchronize": lambda device=None: None,
            "empty_cache": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for name, value in {
            "_cuda_endAllocateToPool": self._end_pool,
            "_cuda_releasePool": lambda *_: None,
            "_cuda_clearCublasWorkspaces": lambda: self.log.append("workspaces dropped"),
        }.items():
            monkeypatch.setattr(torch._C, name, value, raising=False)
        monkeypatch.setattr(stream, "_MADE", {})
        return self

    def random(self) -> None:
        """Imitates a call of the random generator, as dropout makes it, outside a capture."""
        if self.capturing and not self.present.captures:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    def refuse(self, why: str) -> None:
        """Imitates work that cannot be captured; outside a capture, does nothing."""
        if self.present.captures:
            self.invalid = True
            raise RuntimeError(f"CUDA error: {why}")

    @property
    def present(self) -> FakeStream:
        return self._current()

    def _current(self, device: Any = None) -> FakeStream:
        index = self.device if device is None or device.index is None else device.index
        other = FakeStream(self, f"default of {index}", index)
        return self._presents.setdefault(index, other)

    def _stream(self, device: Any = None, priority: int = 0) -> FakeStream:
        index = self.device if device is None or device.index is None else device.index
        pool = self._pools[index, priority]
        if len(pool) < 32:
            name = f"stream {len(self.streams) + 1}"
            self.streams.append(FakeStream(self, name, index, priority))
            pool.append(self.streams[-1])
        else:
            pool.rotate(-1)
        return pool[-1]

    def _set_stream(self, stream: FakeStream) -> None:
        self.device = stream.device.index
        self._presents[self.device] = stream

    @contextmanager
    def _use(self, stream: FakeStream):
        before = self._current(stream.device), self.present
        self._set_stream(stream)
        try:
            yield
        finally:
            for was in before:
                self._set_stream(was)

    def _handle(self) -> tuple[int, int]:
        self._handles += 1
        return (0, self._handles)

    def _end_pool(self, device: int, pool: Any) -> None:
        if pool not in self.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools.remove(pool)


class FakeStream:
    """Imitates ``torch.cuda.Stream``."""

    def __init__(self, cuda: FakeCuda, name: str, index: int = 0, priority: int = 0) -> None:
        self.name, self.captures, self.priority = name, False, priority
        self.device = torch.device("cuda", index)
        self._cuda = cuda

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.log.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    """Imitates ``torch.cuda.CUDAGraph``; a replay repeats nothing."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def replay(self) -> None:
        self._cuda.log.append(f"replay on {self._cuda.present.name}")

    def reset(self) -> None:
        pass


class FakeCapture:
    """Imitates ``torch.cuda.graph``: enters and exits as torch 2.11 does."""

    def __init__(
        self,
        cuda: FakeCuda,
        graph: FakeGraph,
        pool: Any = None,
        stream: FakeStream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._cuda, self._pool = cuda, pool
        self._stream = stream or FakeStream(cuda, "torch's own")
        cuda.modes.append(capture_error_mode)

    def __enter__(self) -> None:
        cuda = self._cuda
        self._before = cuda._current(self._stream.device), cuda.present
        cuda._set_stream(self._stream)
        cuda.log.append("capture begins")
        if self._stream.captures:
            raise RuntimeError("CUDA error: the stream is capturing")
        self._stream.captures = cuda.capturing = True
        cuda.invalid = cuda.breaks_every_capture
        cuda.pools.add(self._pool)

    def __exit__(self, *_: Any) -> None:
        cuda = self._cuda
        assert cuda.present is self._stream, "a capture must end on the stream it began on"
        self._stream.captures = False
        cuda.log.append("capture ends")
        if cuda.invalid:
            cuda.invalid = False
            raise RuntimeError("CUDA error: operation failed due to a previous error in capture")
        cuda.pools.remove(self._pool)
        cuda.capturing = False
        for was in self._before:
            cuda._set_stream(was)
