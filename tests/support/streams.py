"""A device that is not there, whose streams and events are logged, and order the work on them.

Work queued on one stream runs in order; between streams, and between a stream and the host, nothing
is ordered but by events. :class:`Streams` keeps that order as vector clocks: each stream, and the
host, counts its own work and knows of the others' only what an event or a wait has told it. Two
uses of one memory, of which one writes and neither of which is known to come before the other, are
a race, whatever the values were this time.

Tensors asked for on ``cuda`` stand on the CPU, so that what the library does runs for real.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

HOST = "host"
# What makes a tensor without reading or writing memory, or only looks at it.
_VIEWS = {"__getitem__", "view", "numpy", "detach", "data_ptr", "untyped_storage", "__get__"}
_HOST_READS = {"__bool__", "__int__", "__float__", "item", "tolist"}
_EMPTY = {"empty", "empty_like"}
Clock = dict[str, int]


class Race(AssertionError):
    """Two uses of one memory that nothing orders."""


class Streams(TorchFunctionMode):
    """Logs who does what to which memory, and fails at the first race.

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
        self._kept: list[Any] = []  # an address that comes twice would be two memories

    # ------------------------------------------------------------------ torch.cuda

    def install(self, monkeypatch: Any) -> Streams:
        """Takes the place of ``torch.cuda``'s streams and events."""
        for room in ("batches.loading.loader", "store.on_device"):
            monkeypatch.setattr(f"staticgraph.{room}.require_there", lambda device: device)

        def stream(device: Any = None) -> FakeStream:
            self._made += 1
            return FakeStream(self, f"stream {self._made}")

        monkeypatch.setattr(torch.cuda, "Stream", stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda *_, **__: FakeEvent(self))
        monkeypatch.setattr(torch.cuda, "stream", self.use)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.present)
        return self

    @contextmanager
    def use(self, stream: FakeStream) -> Iterator[None]:
        """``torch.cuda.stream``."""
        before, self.present = self.present, stream
        try:
            yield
        finally:
            self.present = before

    # ------------------------------------------------------------------ order

    def learn(self, who: str, clock: Clock) -> None:
        """What comes next in ``who`` comes after all in ``clock``."""
        own = self._clocks[who]
        for name, time in clock.items():
            own[name] = max(own[name], time)

    def known(self, who: str) -> Clock:
        """What is done by now, as ``who`` knows it."""
        return dict(self._clocks[who])

    def touch(self, value: Tensor, who: str, what: str, writes: bool) -> None:
        """One use of a memory."""
        if who != HOST:
            self.learn(who, self._clocks[HOST])  # it is issued by now
        clock = self._clocks[who]
        clock[who] += 1
        self.log.append((who, what))
        self._kept.append(value)
        uses = self._uses[_memory(value)]
        for other, time, wrote, before in uses:
            if (writes or wrote) and clock[other] < time:
                raise Race(f"{what} on {who} does not wait for {before} on {other}: {self.log}")
        uses.append((who, clock[who], writes, what))

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
        given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        in_place = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
        written = given[:1] if in_place else [v for v in (out,) if isinstance(v, Tensor)]
        there = made_there or any(_memory(value) in self._on_device for value in given)
        if name in _HOST_READS:
            self.learn(HOST, self.known(self.present.name) if there else {})
            return out
        who = self.present.name if there else HOST
        if there:
            self._on_device.update(map(_memory, written))
        for value in written:
            self.touch(value, who, name, True)
        for value in given:
            if all(value is not other for other in written):
                self.touch(value, who, name, False)
        return out


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


class FakeStream:
    """``torch.cuda.Stream``."""

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
    """``torch.cuda.Event``; one that was never recorded waits for nothing."""

    def __init__(self, streams: Streams) -> None:
        self.clock: Clock = {}
        self._streams = streams

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self._streams.present
        self._streams.log.append((stream.name, "record"))
        # Copied: what the stream does later is not part of it.
        self.clock = self._streams.known(stream.name)

    def synchronize(self) -> None:
        self._streams.log.append((HOST, "synchronize"))
        self._streams.learn(HOST, self.clock)
