"""A recorder without a GPU: it notes every operation with its tensors and repeats it on them.

It treats tensor objects as a CUDA graph treats addresses: a replay reads the noted inputs and
writes the noted results, even if Python has replaced these objects in the meantime. An input that
was not copied to its noted place gives wrong values, as with a CUDA graph, and reading a number on
the host raises :class:`HostRead`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from staticgraph.recording.recorder import Recorded


class HostRead(RuntimeError):
    """A value was read on the host, where a capture would fail."""


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list[Tensor]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise HostRead("operation not permitted when recording: a value is read on the host")
        out = func(*args, **kwargs)
        results = [value for value in tree_flatten(out)[0] if isinstance(value, Tensor)]
        self.calls.append((func, args, kwargs, results))
        return out

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, results in self.calls:
                returns = func._schema.returns
                is_view = any(r.alias_info and not r.alias_info.is_write for r in returns)
                if is_view:
                    continue  # the noted view still refers to the noted tensor
                fresh = tree_flatten(func(*args, **kwargs))[0]
                values = [value for value in fresh if isinstance(value, Tensor)]
                for noted, value in zip(results, values, strict=True):
                    if noted is not value:
                        noted.copy_(value)


class TapeRecorder:
    """Records eager work, and counts its recordings."""

    compiles = False

    def __init__(self, device: torch.device) -> None:
        self.recorded = 0
        self.closed = False

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        for _ in range(runs):
            body()

    def record(self, body: Callable[[], Any]) -> Recorded:
        assert not self.closed
        tape = _Tape()
        with tape:
            result = body()
        self.recorded += 1
        return Recorded(tape.replay, result)

    def close(self) -> None:
        self.closed = True
