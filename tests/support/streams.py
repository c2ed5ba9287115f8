"""A simulated device with logged streams and events that detects races.

Work queued on one stream runs in order; between streams, and between a stream and the host, only
events order work. :class:`Streams` keeps that order as vector clocks: each stream, and the host,
counts its own work and knows of the others' only through events and waits. Two uses of the same
memory, at least one of them a write and neither known to precede the other, are a race, even if the
values happened to be right.

The caching allocator reuses freed memory in the order of the stream that it was allocated on, which
may be before another stream has used it for the last time, unless the memory was marked with
``record_stream``; :meth:`Streams.free` checks that.

Tensors requested on ``cuda`` are on the CPU, so that the library's code actually runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

HOST = "host"
# Functions that make a tensor without reading or writing memory, or only inspect it.
_VIEWS = {"__getitem__", "view", "numpy", "detach", "data_ptr", "untyped_storage", "__get__"}
_HOST_READS = {"__bool__", "__int__", "__float__", "item", "tolist"}
_EMPTY = {"empty", "empty_like"}
Clock = dict[str, int]


class Race(AssertionError):
    """Two unordered uses of the same memory."""


class Streams(TorchFunctionMode):
    """Logs the uses of each memory, and fails at the first race.

    Attributes:
        log: ``(who, what)`` in the order of issue.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, str]] = []
        self.present = self.default = FakeStream(self, "default")
        self._made = 0
        self._clocks: dict[str, Clock] = defaultdict(lambda: defaultdict(int))
        self._uses: dict[int, list[tuple[str, int, bool, str]]] = defaultdict(list)
        self._on_device: set[int] = set()
        self._marked: set[tuple[int, str]] = set()  # memory and stream
        self._kept: list[Any] = []  # keeps addresses from being reused for another memory

    # ------------------------------------------------------------------ torch.cuda

    def install(self, monkeypatch: Any) -> Streams:
        """Replaces ``torch.cuda``'s streams and events."""
        for room in ("batches.loading.loader", "store.on_device"):
            monkeypatch.setattr(f"staticgraph.{room}.require_there", torch.device)

        def stream(device: Any = None) -> FakeStream:
            self._made += 1
            return FakeStream(self, f"stream {self._made}")

        monkeypatch.setattr(torch.cuda, "Stream", stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda *_, **__: FakeEvent(self))
        monkeypatch.setattr(torch.cuda, "stream", self.use)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.present)
        # Replaced as a method: torch refuses a stream that is none before it asks a mode.
        monkeypatch.setattr(Tensor, "record_stream", self.mark)
        return self

    @contextmanager
    def use(self, stream: FakeStream) -> Iterator[None]:
        """Imitates ``torch.cuda.stream``."""
        before, self.present = self.present, stream
        try:
            yield
        finally:
            self.present = before

    # ------------------------------------------------------------------ order

    def learn(self, who: str, clock: Clock) -> None:
        """Orders the next work of ``who`` after everything in ``clock``."""
        own_clock = self._clocks[who]
        for name, time in clock.items():
            own_clock[name] = max(own_clock[name], time)

    def known(self, who: str) -> Clock:
        """Returns the work that is done so far, as ``who`` knows it."""
        return dict(self._clocks[who])

    def touch(self, value: Tensor, who: str, what: str, writes: bool) -> None:
        """Records one use of a memory.

        Raises:
            Race: if it is not ordered after an earlier use, and one of the two writes.
        """
        if who != HOST:
            self.learn(who, self._clocks[HOST])  # work follows what the host did before issuing it
        clock = self._clocks[who]
        clock[who] += 1
        self.log.append((who, what))
        self._kept.append(value)
        uses = self._uses[_memory(value)]
        for other, time, wrote, before in uses:
            if (writes or wrote) and clock[other] < time:
                raise Race(f"{what} on {who} does not wait for {before} on {other}: {self.log}")
        uses.append((who, clock[who], writes, what))

    @property
    def mark(self) -> Callable[[Tensor, FakeStream], None]:
        """Imitates ``Tensor.record_stream``."""
        return lambda value, stream: self._marked.add((_memory(value), stream.name))

    def free(self, value: Tensor) -> None:
        """Imitates that the last reference to a memory of the default stream goes.

        Raises:
            Race: the default stream may reuse it before another stream has used it for the last
                time.
        """
        memory, reuse = _memory(value), self.known(self.default.name)
        for marked, stream in self._marked:
            if marked == memory:  # the allocator waits for it, and so for what it has waited for
                for who, time in self.known(stream).items():
                    reuse[who] = max(reuse.get(who, 0), time)
        for who, time, _, what in self._uses[memory]:
            if reuse.get(who, 0) < time:
                raise Race(f"memory is freed before {what} on {who}: {self.log}")

    # ------------------------------------------------------------------ torch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        wanted = kwargs.get("device")
        made_there = wanted is not None and torch.device(wanted).type == "cuda"
        if made_there:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        out = func(*args, **kwargs)
        if name in _EMPTY and made_there:
            self._on_device.add(_memory(out))
            self._kept.append(out)
        if name in _VIEWS or name in _EMPTY or name.startswith(("is_", "dim", "size", "numel")):
            return out
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        in_place = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
        written = tensors[:1] if in_place else [v for v in (out,) if isinstance(v, Tensor)]
        there = made_there or any(_memory(value) in self._on_device for value in tensors)
        if name in _HOST_READS:
            self.learn(HOST, self.known(self.present.name) if there else {})
            return out
        who = self.present.name if there else HOST
        if there:
            self._on_device.update(map(_memory, written))
        for value in written:
            self.touch(value, who, name, True)
        for value in tensors:
            if all(value is not other for other in written):
                self.touch(value, who, name, False)
        return out


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class FakeStream:
    """Imitates ``torch.cuda.Stream``."""

    def __init__(self, streams: Streams, name: str) -> None:
        self.name = name
        self._streams = streams

    def wait_event(self, event: FakeEvent) -> None:
        self._streams.log.append((self.name, "wait_event"))
        self._streams.learn(self.name, event.clock)

    def wait_stream(self, other: FakeStream) -> None:
        self._streams.log.append((self.name, f"wait_stream {other.name}"))
        self._streams.learn(self.name, self._streams.known(other.name))


class FakeEvent:
    """Imitates ``torch.cuda.Event``; waiting for one that was never recorded does nothing."""

    def __init__(self, streams: Streams) -> None:
        self.clock: Clock = {}
        self._streams = streams

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self._streams.present
        self._streams.log.append((stream.name, "record"))
        # A copy, since later work of the stream is not part of the event.
        self.clock = self._streams.known(stream.name)

    def synchronize(self) -> None:
        self._streams.log.append((HOST, "synchronize"))
        self._streams.learn(HOST, self.clock)
