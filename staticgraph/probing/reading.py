"""What is read, what a reading says, and the interface of those who read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.batches.collate import RealCounts
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.arguments import Forward

# Steps before the one that is read: the first makes the optimizer's state, the second shows the
# allocator (and cuBLAS, which takes its workspace at first use) the whole cycle.
WARM_STEPS = 2


@dataclass(frozen=True, slots=True)
class Subject:
    """What a reader runs: a model and how it is trained.

    Attributes:
        model: on the device where it will train.
        schema: the fields of the data.
        loss: as :class:`staticgraph.StaticGraphRunner` takes it; None reads an evaluation.
        optimizer: None reads forward and backward alone.
        forward: how the model is called.
        autocast: a dtype or None.
        accumulate: backward passes to one step of the optimizer.
        counted: let layers follow the batch's real counts, full to the limits, as they do in eager
            mode outside a recording.
    """

    model: torch.nn.Module
    schema: Schema
    loss: Callable[[Any, StaticBatch], Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    forward: Forward | None = None
    autocast: torch.dtype | None = None
    accumulate: int = 1
    counted: bool = False

    @property
    def pointers(self) -> bool:
        """Whether the model's layers read row pointers, so that a batch must carry them."""
        return any(getattr(module, "reads_pointers", False) for module in self.model.modules())

    def real_counts(self, capacity: Capacity) -> RealCounts | None:
        """The host counts that a batch of this capacity tells its layers."""
        if not self.counted:
            return None
        schema, own = self.schema, tuple((name, rows - 1) for name, rows in capacity.extra)
        nodes, edges = capacity.node_limit, capacity.edge_limit
        if schema.hetero:
            rows = dict(own)
            nodes = sum(rows[axis.name] for axis in schema.node_axes)
            edges = sum(rows[axis.name] for axis in schema.edge_axes)
        return RealCounts(nodes, edges, capacity.graph_limit, capacity.max_graph_nodes, own)


class Reading(NamedTuple):
    """One warm step, in bytes.

    Attributes:
        step: what forward and backward added, at the peak, to model, optimizer state and batch.
        update: what the optimizer's step had added at its peak, gradients included.
        overhead: reserved over allocated bytes at the peak, less one.
        workspaces: of libraries, where the reader can tell them.
        moments: what was added after every operation, where the reader can tell.
        operations: a number for each of them, the same for the same operation.
    """

    step: int
    update: int = 0
    overhead: float = 0.0
    workspaces: int = 0
    moments: NDArray[np.float64] | None = None
    operations: NDArray[np.int64] | None = None


Read = Callable[[Capacity], Reading]


class MemoryReader(Protocol):
    """Opens a model for reading."""

    name: str

    def open(self, subject: Subject) -> AbstractContextManager[Read]:
        """Gives a function that reads one step at a capacity; puts everything back at the end."""
        ...


class GivenReader:
    """Answers with a function of the capacity: bytes, or a whole :class:`Reading`."""

    def __init__(
        self, bytes_of: Callable[[Capacity], int | Reading], name: str = "given numbers"
    ) -> None:
        self._bytes_of = bytes_of
        self.name = name

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Read]:
        """Runs nothing."""

        def read(capacity: Capacity) -> Reading:
            found = self._bytes_of(capacity)
            return found if isinstance(found, Reading) else Reading(int(found))

        yield read
