"""Where a test of the GPU runs: on the GPU, and the same body on the CPU, so that nothing a CPU can
see fails only there.

On the CPU a recording is one of the arena (:mod:`support.arena`), and what torch.compile traces
runs as it was traced: Inductor's code for a CPU takes minutes and says nothing of a GPU's. What
only CUDA has (launches, reserved bytes, graphs that torch recorded) stands behind
:attr:`Place.cuda`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from support.arena import ArenaRecorder

DEVICES = [pytest.param("cuda", marks=pytest.mark.gpu), "cpu"]


class Place:
    """One device, and what records on it.

    Attributes:
        device: by name.
        cuda: whether it is the GPU.
        recorders: those made on the CPU so far.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.cuda = device == "cuda"
        self.recorders: list[ArenaRecorder] = []

    @property
    def recorder(self) -> Callable[[torch.device], Any] | None:
        """For ``Recording(recorder=...)``: torch's graphs on CUDA."""
        return None if self.cuda else self._arena

    def made_recorder(self) -> Any:
        """One, for whoever takes no factory; None on CUDA, where each makes its own."""
        return None if self.cuda else self._arena(torch.device(self.device))

    def _arena(self, device: torch.device) -> ArenaRecorder:
        self.recorders.append(ArenaRecorder(device))
        return self.recorders[-1]

    def held(self) -> int:
        """Bytes that stay held once garbage is collected: those that the allocator reserves, or
        those that recordings hold in their arenas."""
        gc.collect()
        if not self.cuda:
            return sum(recorder.arena.live for recorder in self.recorders)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()


class AsTraced:
    """Takes the place of Inductor: runs the graph."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return graph.forward


def mode_of(mode: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A runner's mode for a test's: "traced" is "default", the graph run as it was traced, where
    what is tested is decided by then and Inductor's code of one such graph proves the rest."""
    if mode != "traced":
        return mode
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", AsTraced)
    return "default"


@pytest.fixture(params=DEVICES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The GPU where there is one, and the CPU everywhere."""
    if request.param == "cpu":
        monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", AsTraced)
    yield Place(request.param)
    torch.compiler.reset()
