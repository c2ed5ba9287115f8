"""Runs a GPU test on the GPU, and its body on the CPU, which finds failures that a CPU can show.

On the CPU, recordings use the arena (:mod:`support.arena`), and graphs traced by torch.compile run
as traced: Inductor's code for a CPU takes minutes to compile and says nothing about a GPU's. Checks
that only CUDA allows (launches, reserved bytes, graphs that torch recorded) are conditional on
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
    """A device and its recorder.

    Attributes:
        device: name of the device.
        cuda: whether it is the GPU.
        recorders: the recorders made on the CPU so far.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.cuda = device == "cuda"
        self.recorders: list[ArenaRecorder] = []

    @property
    def recorder(self) -> Callable[[torch.device], Any] | None:
        """The value for ``Recording(recorder=...)``: None on CUDA, for torch's graphs."""
        return None if self.cuda else self._arena

    def _arena(self, device: torch.device) -> ArenaRecorder:
        self.recorders.append(ArenaRecorder(device))
        return self.recorders[-1]

    def held(self) -> int:
        """Returns the bytes held after garbage collection.

        These are the bytes that the allocator reserves, or that recordings hold in their arenas.
        """
        gc.collect()
        if not self.cuda:
            return sum(recorder.arena.live for recorder in self.recorders)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()


class AsTraced:
    """Replaces Inductor: runs the graph as traced."""

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return graph.forward


def mode_of(mode: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the runner's mode for a test's mode.

    "traced" becomes "default" with the graph run as traced, for tests that do not depend on
    Inductor's code; another test of one such graph covers that.
    """
    if mode != "traced":
        return mode
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", AsTraced)
    return "default"


@pytest.fixture(params=DEVICES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The GPU, if there is one, and the CPU."""
    if request.param == "cpu":
        monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", AsTraced)
    yield Place(request.param)
    torch.compiler.reset()
