"""The steps that are read, the contents of a reading, and the interface of readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.nn.context.turns import Turn
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject

# Steps before the one that is read: the first creates the optimizer's state, the second shows the
# allocator (and cuBLAS, which allocates its workspace at first use) the whole cycle.
WARM_STEPS = 2


@dataclass(frozen=True, slots=True)
class Probed:
    """The steps that a reader runs: of a model, over data of one kind.

    Attributes:
        subject: the model and how it is trained. Without a loss an evaluation is read, without an
            optimizer only forward and backward.
        schema: the fields of the data.
        accumulate: backward passes per step of the optimizer.
        counted: let layers follow the batch's real counts, full up to the limits, as they do in
            eager mode outside a recording.
    """

    subject: Subject
    schema: Schema
    accumulate: int = 1
    counted: bool = False

    def layout(self, capacity: Capacity) -> SlotLayout:
        """The arrays of a batch of this capacity."""
        return SlotLayout(0, capacity, self.schema, self.subject.pointers)

    def real_counts(self, capacity: Capacity) -> RealCounts | None:
        """The host counts that a batch of this capacity reports to its layers."""
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
    """The memory of one warm step, in bytes.

    Attributes:
        step: what forward and backward added, at the peak, to model, optimizer state and batch.
        update: what the optimizer's step had added at its peak, gradients included.
        overhead: reserved over allocated bytes at the peak, minus one.
        workspaces: of libraries, where the reader knows them.
        moments: what had been added after every operation, where the reader knows it.
        operations: a number for each of them, the same for the same operation.
        widths: places per graph of the dense blocks that its layers requested, where the reader
            knows them.
        turns: the block that each of the operations belongs to, inside loops over blocks; empty
            where the reader does not know.
        blocks: how many blocks the longest loop goes through, where the reader knows it.
    """

    step: int
    update: int = 0
    overhead: float = 0.0
    workspaces: int = 0
    moments: NDArray[np.float64] | None = None
    operations: NDArray[np.int64] | None = None
    widths: tuple[int, ...] = ()
    turns: tuple[Turn | None, ...] = ()
    blocks: int = 1


def blocks_of(turns: Iterable[Turn | None]) -> int:
    """How many blocks the longest loop goes through, from the operations' turns; 1 without one."""
    return max((turn.block for turn in turns if turn is not None), default=0) + 1


Read = Callable[[Capacity], Reading]


class MemoryReader(Protocol):
    """Opens a model for reading."""

    name: str

    def open(self, probed: Probed) -> AbstractContextManager[Read]:
        """Yields a function that reads one step at a capacity; restores everything at the end."""
        ...


class GivenReader:
    """Reads from a function of the capacity that returns bytes, or a whole :class:`Reading`."""

    def __init__(
        self, bytes_of: Callable[[Capacity], int | Reading], name: str = "given numbers"
    ) -> None:
        self._bytes_of = bytes_of
        self.name = name

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """Opens nothing and runs nothing."""

        def read(capacity: Capacity) -> Reading:
            """Returns a reading as given, or one made from the given bytes."""
            found = self._bytes_of(capacity)
            return found if isinstance(found, Reading) else Reading(int(found))

        yield read
