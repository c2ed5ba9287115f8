"""Attention blocks whose cost follows the sizes of the graphs: a few widths instead of one.

Which blocks a bucket has is pure arithmetic (:mod:`staticgraph.sizes.attention`); this module moves
nodes into them and back.

Invariant: every real node has exactly one place; padding nodes have none and read zeros. Both
directions are gathers, each the other's derivative, as in
:mod:`staticgraph.nn.context.dense_layout`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.nn.context.dense_layout import Regather
from staticgraph.sizes.attention import AttentionBlock, AttentionPath, clipped


class ClassedLayout(NamedTuple):
    """Gather indices between ``[N, ...]`` and the places of several blocks, one after another.

    Attributes:
        blocks: their shapes.
        node_of_place: ``[P]`` int64, the node at each place; ``N`` where it is empty.
        place_of_node: ``[N]`` int64, the place of each node; ``P`` for padding nodes.
        graph_by_size: ``[G]`` int64, the graphs by descending size, the order of the blocks' rows.
        place_by_size: ``[G]`` int64, the inverse permutation.
        attendable: for each block ``[graphs, width]`` bool: real nodes, and the first place of a
            graph without any, so that no softmax is over an empty set.
    """

    blocks: tuple[AttentionBlock, ...]
    node_of_place: Tensor
    place_of_node: Tensor
    graph_by_size: Tensor
    place_by_size: Tensor
    attendable: tuple[Tensor, ...]

    @classmethod
    def of(cls, batch: StaticBatch, path: AttentionPath) -> ClassedLayout:
        """Computes the places of a batch's nodes: in the bucket's blocks, or, if its real counts
        are known, in the part of each block that these counts need."""
        blocks = _clipped(path.blocks, batch)
        counts = torch.where(batch.graph_mask, batch.ptr.diff(), 0)
        order = counts.argsort(descending=True, stable=True)
        starts = batch.ptr[:-1]
        nodes, attendable, offset = [], [], 0
        base = torch.zeros_like(order)  # by descending size: where a graph's places begin
        by_size = torch.arange(len(order), device=order.device)
        for block in blocks:
            graphs = order[block.first : block.first + block.graphs]
            places = torch.arange(block.width, device=order.device)
            occupied = places < counts[graphs][:, None]
            nodes.append(torch.where(occupied, starts[graphs][:, None] + places, batch.num_nodes))
            attendable.append(occupied | (~occupied[:, :1] & (places == 0)))
            own = offset + (by_size - block.first) * block.width
            base = torch.where(by_size >= block.first, own, base)
            offset += block.places
        base_of_graph = torch.empty_like(base).index_copy(0, order, base)
        owner = batch.batch
        within = torch.arange(batch.num_nodes, device=order.device) - starts[owner]
        place = torch.where(batch.node_mask, base_of_graph[owner] + within, offset)
        node_of_place = torch.cat([each.view(-1) for each in nodes])
        place_by_size = torch.empty_like(by_size).index_copy(0, order, by_size)
        return cls(blocks, node_of_place, place, order, place_by_size, tuple(attendable))

    def to_blocks(self, rows: Tensor) -> list[Tensor]:
        """``[N, ...]`` -> one ``[graphs, width, ...]`` per block, zeros at empty places."""
        flat = Regather.apply(rows, self.node_of_place, self.place_of_node)
        pieces = flat.split([block.places for block in self.blocks])
        return [
            piece.view(block.graphs, block.width, *rows.shape[1:])
            for piece, block in zip(pieces, self.blocks, strict=True)
        ]

    def to_nodes(self, blocks: list[Tensor]) -> Tensor:
        """One ``[graphs, width, ...]`` per block -> ``[N, ...]``, zeros on padding nodes."""
        flat = torch.cat([block.flatten(0, 1) for block in blocks])
        return Regather.apply(flat, self.place_of_node, self.node_of_place)

    def to_graphs(self, blocks: list[Tensor]) -> Tensor:
        """One ``[graphs, ...]`` per block -> ``[G, ...]``, zeros for graphs without a row."""
        flat = torch.cat(blocks)
        rows = len(flat)
        index = torch.where(self.place_by_size < rows, self.place_by_size, rows)
        return Regather.apply(flat, index, self.graph_by_size[:rows])


def _clipped(blocks: tuple[AttentionBlock, ...], batch: StaticBatch) -> tuple[AttentionBlock, ...]:
    real = batch.real
    return blocks if real is None else clipped(blocks, real.nodes, real.graphs, real.largest)
