"""Pools and aggregations over the nodes of each graph, which are contiguous in a static batch.

Stock pools scatter by the batch vector, with atomic additions on a GPU. The graphs' own pointers
say where each graph begins, so a pool is one pass over its rows (:mod:`staticgraph.kernels`). The
functions ``global_add_pool``, ``global_mean_pool`` and ``global_max_pool`` come here through
:mod:`staticgraph.nn.functions`; aggregation modules change their class.

Aggregations inside a message passing layer are not handled here; the layer's fused form does it.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch_geometric.nn.aggr import (
    MaxAggregation,
    MeanAggregation,
    SoftmaxAggregation,
    SumAggregation,
)

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.kernels.segments import segment_max, segment_softmax, segment_sum
from staticgraph.nn.fused.layer import Fused


def pooled(
    bound: StaticBatch | None, reduce: str, x: Tensor, batch: Tensor | None, size: int | None
) -> Tensor | None:
    """``[N, F]`` -> ``[G, F]`` for ``reduce`` in ``sum``, ``mean``, ``max``; None if the stock code
    must run."""
    if bound is None or obstacle(bound, x, batch, size, -2) is not None:
        return None
    if reduce == "max":
        return segment_max(x, bound.ptr)
    return segment_sum(x, bound.ptr, mean=reduce == "mean")


def obstacle(
    bound: StaticBatch | None, x: Tensor, index: Tensor | None, size: int | None, dim: int
) -> str | None:
    """Returns why rows cannot be reduced by the graphs' pointers; None if they can."""
    if bound is None:
        return "no batch is bound: it ran outside the runner"
    if index is None or index is not bound.batch or size not in (None, bound.num_graphs):
        return "index is not the batch's own, so its pointers do not fit"
    if x.dim() != 2 or dim not in (0, -2) or not x.is_floating_point():
        return "only matrices of floats have a fused form"
    return None


class _Reducing(Fused):
    """The forward that sum, mean and max share."""

    _reduce: str

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, F]``, by the graphs' pointers where they fit."""
        reason = obstacle(self.batch, x, index, dim_size, dim)
        if not self.use("ptr was given" if reason is None and ptr is not None else reason):
            return super().forward(x, index, ptr, dim_size, dim)  # pyright: ignore[reportAttributeAccessIssue]
        found = pooled(self.batch, self._reduce, x, index, dim_size)
        assert found is not None
        return found


class FusedSumAggregation(_Reducing, SumAggregation):
    """Takes the place of ``SumAggregation``."""

    _reduce = "sum"


class FusedMeanAggregation(_Reducing, MeanAggregation):
    """Takes the place of ``MeanAggregation``."""

    _reduce = "mean"


class FusedMaxAggregation(_Reducing, MaxAggregation):
    """Takes the place of ``MaxAggregation``."""

    _reduce = "max"


class FusedSoftmaxAggregation(Fused, SoftmaxAggregation):
    """``sum softmax(t x) x`` over each graph (Li et al. 2020, arXiv 2006.07739)."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """``[N, F]`` to ``[G, F]``: softmax and sum by segments."""
        bound, reason = self.batch, obstacle(self.batch, x, index, dim_size, dim)
        if not self.use("ptr was given" if reason is None and ptr is not None else reason):
            return super().forward(x, index, ptr, dim_size, dim)
        assert bound is not None
        t = self.t.view(-1, self.channels) if isinstance(self.t, Tensor) else self.t
        alpha = x if isinstance(t, int | float) and t == 1 else x * t
        with torch.no_grad() if self.semi_grad and not self.learn else nullcontext():
            alpha = segment_softmax(alpha, bound.ptr)
        return segment_sum(x * alpha, bound.ptr)
