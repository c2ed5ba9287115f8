"""Pooling layers that attend among the nodes of each graph, in the bucket's blocks by size.

``SetTransformerAggregation`` (Lee et al. 2019, arXiv 1810.00825) and ``GraphMultisetTransformer``
(Baek et al. 2021, arXiv 2102.11533) lay out all graphs in one block as wide as the largest, and
project every place of it. A graph's result does not depend on the width, so PyG's own forward runs
on one block after another, and the results are returned in the original order of the graphs.

Only the two dense paths exist here: seed vectors also attend to nodes but belong to no graph, so
``varlen`` has no sequence for them. If another path is requested, layers that support it use it,
and these pools use the cheaper of the dense ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import GraphMultisetTransformer, SetTransformerAggregation

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.size_classes import ClassedLayout
from staticgraph.sizes.attention import pooling_path


def _blocks_for(
    context: BatchContext, x: Tensor, index: Tensor | None, dim_size: int | None, given: Any
) -> ClassedLayout | None:
    """The blocks, if the pool is over the nodes of the batch's graphs and blocks by size pay off;
    else None."""
    if context.batch is None or given is not None or x.dim() != 2:
        return None
    batch = context.present
    if index is not batch.batch or dim_size not in (None, batch.num_graphs):
        return None
    name = pooling_path(batch.capacity, context.attention.requested).name
    return context.classed(name) if name == "size-classed" else None


class _ByBlocks:
    """Runs PyG's forward on given blocks instead of the single block that it would make."""

    _staticgraph: BatchContext

    _staticgraph_attends = "seeds"  # read by steps.attention_choices

    def to_dense_batch(
        self, x: Tensor, index: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns a block and its mask unchanged; anything else is laid out by PyG."""
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
        """Rows ``[N, F]`` to ``[groups, C]``, block by block in the size-classed layout."""
        pool = super().forward  # pyright: ignore
        layout = _blocks_for(self._staticgraph, x, index, dim_size, max_num_elements)
        if layout is None:
            return pool(x, index, ptr, dim_size, dim, max_num_elements)
        blocks = zip(layout.to_blocks(x), layout.attendable, strict=True)
        return layout.to_graphs([pool(rows, mask) for rows, mask in blocks])


class StaticSetTransformerAggregation(_ByBlocks, SetTransformerAggregation):
    """``SetTransformerAggregation``: over the bucket's blocks by size where they pay."""


class StaticGraphMultisetTransformer(_ByBlocks, GraphMultisetTransformer):
    """``GraphMultisetTransformer``: over the bucket's blocks by size where they pay."""
