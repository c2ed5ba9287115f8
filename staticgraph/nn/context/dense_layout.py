"""Maps nodes of a batch to one padded row of nodes per graph and back, by gathers alone.

Attention among the nodes of each graph needs a block ``[graphs, M, ...]``. Stock ``to_dense_batch``
reads ``M`` and the number of graphs from the data, and the way back is an index with a mask: two
host reads per layer. Here both directions are gathers with indices made once per batch, and each is
the other's derivative, so that forward, backward and second derivatives need neither a scatter nor
an atomic addition. Padding nodes have no place in the block, since one padding graph of 300 padding
nodes would widen every row. They read a row of zeros instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.nn.context.bound_batch import leaves
from staticgraph.nn.context.leaf_calls import leaf


class DenseLayout(NamedTuple):
    """Gather indices between ``[N, ...]`` and ``[graphs, M, ...]``.

    Attributes:
        graphs: rows of the block.
        width: ``M``, places in a row.
        node_of_place: ``[graphs * M]`` int64, the node at each place; ``N`` where it is empty.
        place_of_node: ``[N]`` int64, the place of each node; ``graphs * M`` for padding nodes.
        occupied: ``[graphs, M]`` bool, places that hold a real node.
    """

    graphs: int
    width: int
    node_of_place: Tensor
    place_of_node: Tensor
    occupied: Tensor

    @classmethod
    def of(cls, batch: StaticBatch) -> DenseLayout:
        """The block of a batch: as large as the bucket allows inside a compiled step, and as large
        as this batch needs where its real counts are known."""
        graphs, width = batch.num_graphs, batch.capacity.max_graph_nodes
        if batch.real is not None:
            graphs, width = max(1, batch.real.graphs), max(1, batch.real.largest)
        starts, counts = batch.ptr[:-1], torch.where(batch.graph_mask, batch.ptr.diff(), 0)
        return cls.over(batch.batch, batch.node_mask, starts, counts, graphs, width)

    @classmethod
    def over(
        cls,
        owner: Tensor,
        mask: Tensor,
        starts: Tensor,
        counts: Tensor,
        graphs: int,
        width: int,
    ) -> DenseLayout:
        """The block of rows that are sorted by group; rows beyond ``width`` are left out.

        Args:
            owner: ``[R]`` int64, the group of each row.
            mask: ``[R]`` bool, which rows are real.
            starts: ``[>= graphs]`` int64, the first row of each group.
            counts: ``[>= graphs]`` int64, real rows of each group.
            graphs: rows of the block, at least the number of groups that have real rows.
            width: places in a row of the block.
        """
        rows = owner.size(0)  # torch 2.11 traces no len() of a marked tensor
        places = torch.arange(width, device=owner.device)
        occupied = places < counts[:graphs, None]
        node_of_place = torch.where(occupied, starts[:graphs, None] + places, rows)
        within = torch.arange(rows, device=owner.device) - starts[owner]
        inside = mask & (within < width)
        place_of_node = torch.where(inside, owner * width + within, graphs * width)
        return cls(graphs, width, node_of_place.view(-1), place_of_node, occupied)

    def reached(self) -> Tensor:
        """``[1, M]`` bool: places within the largest group's size, the width of PyG's block."""
        widest = self.occupied.sum(1).max().clamp(min=1)
        return (torch.arange(self.width, device=self.occupied.device) < widest)[None]

    @property
    def attendable(self) -> Tensor:
        """``[graphs, M]`` bool: real nodes, and the first place of a graph without any, so that no
        softmax is over an empty set."""
        first = torch.arange(self.width, device=self.occupied.device) == 0
        return self.occupied | (~self.occupied[:, :1] & first)

    def to_dense(self, rows: Tensor) -> Tensor:
        """``[N, ...]`` -> ``[graphs, M, ...]``, zeros where there is no node."""
        lay = laid_out if leaves() else _laid_out
        return lay(rows, self.node_of_place, self.place_of_node, self.graphs, self.width)

    def to_nodes(self, block: Tensor) -> Tensor:
        """``[graphs, M, ...]`` -> ``[N, ...]``, zeros on padding nodes."""
        return (read_back if leaves() else _read_back)(
            block, self.place_of_node, self.node_of_place
        )


def places_of(
    index: Tensor, mask: Tensor, groups: int, width: int, whole: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Places of rows that ``index`` assigns to groups: ``node_of_place``, ``place_of_node`` and
    ``occupied`` of their :class:`DenseLayout`.

    Args:
        index: ``[R]`` int64, ascending.
        mask: ``[R]`` bool, which rows are real.
        groups: rows of the block.
        width: places in each.
        whole: whether ``width`` is known to be enough for every group; used by rewrites only.
    """
    zeros = index.new_zeros(groups)
    all_rows = zeros.scatter_add(0, index, torch.ones_like(index))
    counts = zeros.scatter_add(0, index, mask.long())
    starts = all_rows.cumsum(0) - all_rows
    return DenseLayout.over(index, mask, starts, counts, groups, width)[2:]


def _laid_out(
    rows: Tensor, node_of_place: Tensor, place_of_node: Tensor, groups: int, width: int
) -> Tensor:
    block = Regather.apply(rows, node_of_place, place_of_node)
    return block.view(groups, width, *rows.shape[1:])


def _read_back(block: Tensor, place_of_node: Tensor, node_of_place: Tensor) -> Tensor:
    return Regather.apply(block.flatten(0, 1), place_of_node, node_of_place)


def attendable_places(occupied: Tensor, real: Tensor) -> Tensor:
    """``[groups, width]`` bool: real rows, and the first place of a padding group.

    Args:
        occupied: ``[groups, width]`` bool.
        real: ``[groups]`` bool, which groups are real.
    """
    first = torch.arange(occupied.size(1), device=occupied.device) == 0
    return occupied | (~real[:, None] & first)


@leaf
def placed(
    index: Tensor, mask: Tensor, groups: int, width: int, whole: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`places_of`."""
    return places_of(index, mask, groups, width, whole)


@leaf
def laid_out(
    rows: Tensor, node_of_place: Tensor, place_of_node: Tensor, groups: int, width: int
) -> Tensor:
    """``[N, ...]`` -> ``[groups, width, ...]``, zeros where there is no row."""
    return _laid_out(rows, node_of_place, place_of_node, groups, width)


@leaf
def read_back(block: Tensor, place_of_node: Tensor, node_of_place: Tensor) -> Tensor:
    """``[groups, width, ...]`` -> ``[N, ...]``, zeros in rows that have no place."""
    return _read_back(block, place_of_node, node_of_place)


@leaf
def attendable(occupied: Tensor, real: Tensor) -> Tensor:
    """:func:`attendable_places`."""
    return attendable_places(occupied, real)


class Regather(torch.autograd.Function):
    """``out[i] = rows[index[i]]``, or zero where ``index[i] == len(rows)``.

    ``inverse`` is the same map in the other direction, so the derivative is a gather as well.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        """``rows[index]``, zero where the index is ``len(rows)``."""
        ctx.save_for_backward(index, inverse)
        zero = rows.new_zeros(1, *rows.shape[1:])
        return torch.cat([rows, zero]).index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        """The gradient of the rows, gathered by the inverse without a scatter."""
        index, inverse = ctx.saved_tensors
        return Regather.apply(grads[0], inverse, index), None, None
