"""One who takes turns: plain PyG, or this library in one of its modes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from staticgraph.training.versus.setting import Course


class Filling(NamedTuple):
    """Real rows over physical rows, 0 to 1."""

    nodes: float
    edges: float
    graphs: float


class Side(Protocol):
    """Trains over a course, as often as it is asked.

    Attributes:
        name: in tables.
        model: what it trains; optimizer: over its parameters.
    """

    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def prepare(self) -> None:
        """Compiles and records what there is to."""
        ...

    def begin(self, course: Course) -> None:
        """The course that turns are over from now on."""
        ...

    def turn(self) -> Tensor:
        """Trains over the course once, loading included; the losses ``[batches]``, the device's
        queue empty."""
        ...

    def one_step(self) -> AbstractContextManager[Any]:
        """As a ``with`` block: gives a function that takes a training step on a ready batch."""
        ...

    def filling(self) -> Filling:
        """Of the batches so far."""
        ...
