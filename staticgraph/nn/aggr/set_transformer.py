"""Pools that attend among the nodes of each graph, over the bucket's blocks by size.

``SetTransformerAggregation`` (Lee et al. 2019, arXiv 1810.00825) and ``GraphMultisetTransformer``
(Baek et al. 2021, arXiv 2102.11533) lay all graphs out in one block as wide as the largest, and
project every place of it. A graph's result does not depend on the width, so the same modules run
over one block after another, by PyG's own forward, and the graphs come back in their order.

Only the two dense paths exist here: seed vectors attend to nodes as well, and belong to no graph,
so ``flex`` and ``varlen`` have no sequence for them. Who asks for one of these has it in the layers
that can, and the cheaper of the dense ones here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import GraphMultisetTransformer, SetTransformerAggregation

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.size_classes import ClassedLayout
from staticgraph.nn.context.turns import in_turn
from staticgraph.sizes.attention import AttentionPath, AttentionSetting, attention_path
from staticgraph.sizes.capacity import Capacity

SEEDS = AttentionSetting(extra_keys="it pools by seed vectors")


def pooling_path(capacity: Capacity, asked: str) -> AttentionPath:
    """The dense path of these pools in a bucket."""
    return attention_path(capacity, "auto" if SEEDS.forbids(asked) else asked, SEEDS)


def _blocks_for(
    context: BatchContext, x: Tensor, index: Tensor | None, dim_size: int | None, given: Any
) -> ClassedLayout | None:
    """The blocks, where the pool is over the nodes of the batch's graphs and blocks pay."""
    if context.batch is None or given is not None or x.dim() != 2:
        return None
    batch = context.present
    if index is not batch.batch or dim_size not in (None, batch.num_graphs):
        return None
    name = pooling_path(batch.capacity, context.attention.asked).name
    return context.classed(name) if name == "size-classed" else None


class _ByBlocks:
    """PyG's forward over blocks that are given, in place of one that it would make."""

    _staticgraph: BatchContext

    def to_dense_batch(
        self, x: Tensor, index: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """A block and its mask as they are, if that is what they are."""
        if index is not None and index.dtype == torch.bool:
            return x, index
        return super().to_dense_batch(x, index, *args, **kwargs)  # pyright: ignore

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, C]``, block by block where there are several."""
        pool = super().forward  # pyright: ignore
        layout = _blocks_for(self._staticgraph, x, index, dim_size, max_num_elements)
        if layout is None:
            return pool(x, index, ptr, dim_size, dim, max_num_elements)
        blocks = zip(layout.to_blocks(x), layout.attendable, strict=True)
        return layout.to_graphs(in_turn(pool, blocks))


class StaticSetTransformerAggregation(_ByBlocks, SetTransformerAggregation):
    """``SetTransformerAggregation``: over the bucket's blocks by size where they pay."""


class StaticGraphMultisetTransformer(_ByBlocks, GraphMultisetTransformer):
    """``GraphMultisetTransformer``: over the bucket's blocks by size where they pay."""
