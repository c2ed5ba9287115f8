"""Attention blocks whose cost follows the sizes of the graphs: a few widths instead of the largest.

Dense attention over ``[G, M]`` costs ``G * M * M`` entries although one molecule of 222 nodes
stands among a hundred of 25. Order the graphs of a batch by falling size: the ``i``-th of them has
at most ``(N - 1) / i`` nodes, since the ``i`` largest together have no more than ``N - 1``. So the
ranks can be cut into a few blocks, each as wide as the bound at its first rank, and every batch
that fits the bucket fits the blocks: no plan has to promise more than its capacity, and no batch
needs another path. On ogbg-molhiv's bucket of 128 graphs the entries fall to about a quarter.

Invariant: every real node has exactly one place; padding nodes have none and read zeros. The two
ways are gathers, each the other's derivative, as in :mod:`staticgraph.nn.dense`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.batch import StaticBatch
from staticgraph.nn.dense import Regather
from staticgraph.sizes import Capacity

PATHS = ("auto", "dense", "classed")
# Entries that one more block must save: it costs half a dozen kernels forward and backward, 2 us
# each where recorded, in which an H200 computes about this many entries of 64 columns.
ENTRIES_A_BLOCK = 20_000
MAX_BLOCKS = 6
# Below this percentage of the dense entries the blocks are chosen.
WORTH_IT = 75


class Block(NamedTuple):
    """Graphs of ranks ``first`` to ``first + graphs - 1``, each with ``width`` places."""

    first: int
    graphs: int
    width: int

    @property
    def places(self) -> int:
        """Rows of the block."""
        return self.graphs * self.width


class AttentionPath(NamedTuple):
    """How a bucket's attention is laid out.

    Attributes:
        name: ``dense`` (one block) or ``size-classed dense``.
        blocks: by rising rank.
        reason: why, in words, for reports.
    """

    name: str
    blocks: tuple[Block, ...]
    reason: str

    @property
    def entries(self) -> int:
        """Pairs of places that attention looks at."""
        return sum(block.places * block.width for block in self.blocks)


def attention_path(capacity: Capacity, asked: str = "auto") -> AttentionPath:
    """The blocks of a bucket.

    Args:
        capacity: the bucket.
        asked: ``dense``, ``classed``, or ``auto``: whichever has fewer entries by a margin.

    Raises:
        ValueError: another name.
    """
    if asked not in PATHS:
        raise ValueError(f"attention={asked!r}; choose of {', '.join(PATHS)}")
    whole = (Block(0, capacity.graphs, capacity.max_graph_nodes),)
    dense = AttentionPath("dense", whole, "as asked")
    if asked == "dense":
        return dense
    blocks = _cut(capacity.node_limit, capacity.graphs, capacity.max_graph_nodes)
    classed = AttentionPath("size-classed dense", blocks, "as asked")
    if asked == "classed":
        return classed
    share = 100 * classed.entries // dense.entries
    reason = f"auto: {len(blocks)} blocks have {share}% of the entries of one"
    chosen = classed if share < WORTH_IT else dense
    return AttentionPath(chosen.name, chosen.blocks, reason)


def _cut(nodes: int, graphs: int, widest: int) -> tuple[Block, ...]:
    """The ranks ``0 .. graphs - 1`` in blocks that begin in geometric progression.

    Up to rank ``nodes / widest`` every graph can be the widest. From there on the bound falls as
    one over the rank, and of all cuts into ``k`` blocks one with equal ratios has the fewest
    entries; ``k`` is where another block no longer saves what it costs. Plain arithmetic, since it
    is traced with the step.
    """
    first = max(1, nodes // widest)
    if first >= graphs:
        return (Block(0, graphs, widest),)
    best, least = (Block(0, graphs, widest),), graphs * widest * widest + ENTRIES_A_BLOCK
    for count in range(1, MAX_BLOCKS):
        ratio = (graphs / first) ** (1 / count)
        starts, at = [0], float(first)
        for _ in range(count):
            if starts[-1] < int(at) < graphs:
                starts.append(int(at))
            at *= ratio
        ends = [*starts[1:], graphs]
        blocks, cost = [], 0
        for begin, end in zip(starts, ends, strict=True):
            width = max(1, min(widest, nodes // (begin + 1)))
            blocks.append(Block(begin, end - begin, width))
            cost += (end - begin) * width * width + ENTRIES_A_BLOCK
        if cost < least:
            best, least = tuple(blocks), cost
    return best


class ClassedLayout(NamedTuple):
    """Gather indices between ``[N, ...]`` and the places of several blocks, one after another.

    Attributes:
        blocks: their shapes.
        node_of_place: ``[P]`` int64, the node at each place; ``N`` where there is none.
        place_of_node: ``[N]`` int64, the place of each node; ``P`` for padding nodes.
        attendable: for each block ``[graphs, width]`` bool: real nodes, and the first place of a
            graph that has none, so that no softmax is over nothing.
    """

    blocks: tuple[Block, ...]
    node_of_place: Tensor
    place_of_node: Tensor
    attendable: tuple[Tensor, ...]

    @classmethod
    def of(cls, batch: StaticBatch, path: AttentionPath) -> ClassedLayout:
        """The places of a batch's nodes: in the bucket's blocks, or, where its real counts are
        known, in as much of each as these counts need."""
        blocks = _clipped(path.blocks, batch)
        counts = torch.where(batch.graph_mask, batch.ptr.diff(), 0)
        order = counts.argsort(descending=True, stable=True)
        starts = batch.ptr[:-1]
        nodes, attendable, offset = [], [], 0
        base = torch.zeros_like(order)  # by rank: where a graph's places begin
        rank = torch.arange(len(order), device=order.device)
        for block in blocks:
            graphs = order[block.first : block.first + block.graphs]
            places = torch.arange(block.width, device=order.device)
            occupied = places < counts[graphs][:, None]
            nodes.append(torch.where(occupied, starts[graphs][:, None] + places, batch.num_nodes))
            attendable.append(occupied | (~occupied[:, :1] & (places == 0)))
            own = offset + (rank - block.first) * block.width
            base = torch.where(rank >= block.first, own, base)
            offset += block.places
        base_of_graph = torch.empty_like(base).index_copy(0, order, base)
        owner = batch.batch
        within = torch.arange(batch.num_nodes, device=order.device) - starts[owner]
        place = torch.where(batch.node_mask, base_of_graph[owner] + within, offset)
        node_of_place = torch.cat([each.view(-1) for each in nodes])
        return cls(blocks, node_of_place, place, tuple(attendable))

    def to_blocks(self, rows: Tensor) -> list[Tensor]:
        """``[N, ...]`` -> one ``[graphs, width, ...]`` a block, zeros where there is no node."""
        flat = Regather.apply(rows, self.node_of_place, self.place_of_node)
        pieces = flat.split([block.places for block in self.blocks])
        return [
            piece.view(block.graphs, block.width, *rows.shape[1:])
            for piece, block in zip(pieces, self.blocks, strict=True)
        ]

    def to_nodes(self, blocks: list[Tensor]) -> Tensor:
        """One ``[graphs, width, ...]`` a block -> ``[N, ...]``, zeros on padding nodes."""
        flat = torch.cat([block.flatten(0, 1) for block in blocks])
        return Regather.apply(flat, self.place_of_node, self.node_of_place)


def _clipped(blocks: tuple[Block, ...], batch: StaticBatch) -> tuple[Block, ...]:
    if batch.real is None:
        return blocks
    real, clipped = batch.real, []
    for block in blocks:
        graphs = min(block.graphs, max(1, real.graphs) - block.first)
        if graphs > 0:
            most = min(block.width, real.largest, real.nodes // (block.first + 1))
            clipped.append(Block(block.first, graphs, max(1, most)))
    return tuple(clipped)
