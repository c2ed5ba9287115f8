"""What a converted layer knows of the batch that runs through it.

A layer such as BatchNorm is called with a tensor alone, yet must know which of its rows are real.
One named object, shared by the converted layers of one model, carries the present batch; where no
batch is bound (the model is used outside the runner) every layer behaves as it did before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from staticgraph.batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.nn.dense import DenseLayout


class BatchContext:
    """The present batch of one model, or none."""

    __slots__ = ("_dense", "batch")

    def __init__(self) -> None:
        self.batch: StaticBatch | None = None
        self._dense: DenseLayout | None = None

    @contextmanager
    def bind(self, batch: StaticBatch) -> Iterator[None]:
        """Makes ``batch`` the present one for as long as the block runs."""
        self.enter(batch)
        try:
            yield
        finally:
            self.leave()

    def enter(self, batch: StaticBatch) -> None:
        """Makes ``batch`` the present one; :meth:`leave` ends it."""
        self.batch = batch
        self._dense = None

    def leave(self) -> None:
        """Forgets the batch."""
        self.batch = None
        self._dense = None

    def dense(self) -> DenseLayout:
        """Where each node stands in a ``[graphs, M]`` block; made once a forward."""
        assert self.batch is not None
        if self._dense is None:
            self._dense = DenseLayout.of(self.batch)
        return self._dense

    def size_for(self, index: Tensor) -> int:
        """How many groups an index without a given size names, without reading it.

        The batch vector names ``G`` graphs; a vector over edges names ``N`` nodes.

        Raises:
            NotStatic: it is neither, so that only its values could tell.
        """
        batch = self.batch
        assert batch is not None
        if index is batch.batch:
            return batch.num_graphs
        if index.dim() == 1 and index.size(0) == batch.num_edges:
            return batch.num_nodes
        raise NotStatic(
            f"the number of groups of an index of shape {list(index.shape)} can only be read from "
            "its values, which a recorded step cannot do: pass size=, dim_size= or num_nodes= at "
            "this call (batch.num_graphs for graphs, x.size(0) for nodes)"
        )
