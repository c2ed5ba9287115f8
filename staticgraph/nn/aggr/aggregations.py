"""Static forms of PyG's aggregations whose shape or result depends on data.

Most aggregations only need the number of groups, which the static form of ``Aggregation.__call__``
passes to them (:mod:`staticgraph.nn.functions`). The exceptions are here: quantiles count with
``bincount``; recurrent aggregations read their result at the last place of a block as wide as the
batch's largest graph; tree and patch aggregations reduce over that width, so that their result for
one graph depends on the largest graph in the batch, and only a block of exactly that width gives
it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.nn.aggr import (
    Aggregation,
    EquilibriumAggregation,
    GRUAggregation,
    LCMAggregation,
    LSTMAggregation,
    MedianAggregation,
    PatchTransformerAggregation,
    QuantileAggregation,
    SortAggregation,
)

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.utils.dense_batch import widest


class StaticQuantileAggregation(QuantileAggregation):
    """``QuantileAggregation``: the same two sorts, with a given number of groups."""

    _staticgraph: BatchContext

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, quantiles * F]``; the sort and the places have fixed
        shapes."""
        if self._staticgraph.batch is None or index is None or dim_size is None:
            return super().forward(x, index, ptr, dim_size, dim)
        dim = x.dim() + dim if dim < 0 else dim
        count = index.new_zeros(dim_size).scatter_add(0, index, torch.ones_like(index))
        start = (count.cumsum(0) - count).clamp(max=x.size(dim) - 1)
        shape = [1] * x.dim()
        shape[dim] = -1
        order = x.argsort(dim=dim)
        owner = index.view(shape).expand_as(x).take_along_dim(order, dim)
        order = order.take_along_dim(owner.argsort(dim=dim, stable=True), dim)
        ordered = x.take_along_dim(order, dim)
        # An empty group has no place of its own; whatever it reads is overwritten below.
        assert isinstance(self.q, Tensor)
        place = (self.q * (count - 1) + start).clamp(min=0).t().reshape(-1)
        out = self._interpolate(ordered, dim, place, shape)
        empty = (count == 0)[:, None].expand(-1, self.q.numel()).reshape(shape)
        out = torch.where(empty, self.fill_value, out)
        if self.q.numel() == 1:
            return out
        return out.unflatten(dim, (dim_size, -1)).flatten(dim + 1, dim + 2)

    def _interpolate(self, ordered: Tensor, dim: int, place: Tensor, shape: list[int]) -> Tensor:
        how = self.interpolation
        if how in ("lower", "higher", "nearest"):
            rounded = {"lower": place.floor, "higher": place.ceil, "nearest": place.round}[how]()
            return ordered.index_select(dim, rounded.long())
        below = ordered.index_select(dim, place.floor().long())
        above = ordered.index_select(dim, place.ceil().long())
        share = place.frac().view(shape) if how == "linear" else 0.5
        return below + (above - below) * share


class StaticMedianAggregation(MedianAggregation, StaticQuantileAggregation):
    """``MedianAggregation``, a lower 0.5-quantile."""

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, F]``, by the static quantile."""
        return StaticQuantileAggregation.forward(self, x, index, ptr, dim_size, dim)


class _Recurrent(Aggregation):
    """A recurrent network over the block; the result is at its last place."""

    _staticgraph: BatchContext
    _network: ClassVar[str]

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, C]``."""
        x, mask = self.to_dense_batch(
            x, index, ptr, dim_size, dim, max_num_elements=max_num_elements
        )
        out = getattr(self, self._network)(x)[0]
        if max_num_elements is not None or self._staticgraph.batch is None:
            return out[:, -1]
        last = mask.sum(1).max().clamp(min=1) - 1  # of the unpadded batch's block
        return out.index_select(1, last.view(1)).squeeze(1)


class StaticLSTMAggregation(_Recurrent, LSTMAggregation):
    """``LSTMAggregation``; the result is at the last place of the largest group."""

    _network = "lstm"


class StaticGRUAggregation(_Recurrent, GRUAggregation):
    """``GRUAggregation``; the result is at the last place of the largest group."""

    _network = "gru"


def _refuse_open_width(
    layer: Aggregation, context: BatchContext, max_num_elements: int | None
) -> None:
    if context.batch is not None and context.real is None and max_num_elements is None:
        raise NotStatic(
            f"{type(layer).__name__.removeprefix('Static')} reduces over as many places as the "
            "largest graph of the batch has nodes, so its result changes with the width of a "
            "fixed block: pass max_num_elements=, or use another aggregation"
        )


class StaticSortAggregation(SortAggregation):
    """``SortAggregation``: over a block of at least ``k`` places, since PyG would otherwise append
    rows with a fill value that it reads on the host."""

    _staticgraph: BatchContext

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, k * F]``, in blocks as wide as the widest group can be."""
        if self._staticgraph.batch is not None and index is not None and max_num_elements is None:
            max_num_elements = max(widest(self._staticgraph, index), self.k)
        return super().forward(x, index, ptr, dim_size, dim, max_num_elements)


class StaticLCMAggregation(LCMAggregation):
    """``LCMAggregation``; refused inside a compiled step unless the width is given."""

    _staticgraph: BatchContext

    def forward(self, *args: Any, max_num_elements: int | None = None, **kwargs: Any) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, out]``; a compiled step needs ``max_num_elements``."""
        _refuse_open_width(self, self._staticgraph, max_num_elements)
        return super().forward(*args, max_num_elements=max_num_elements, **kwargs)


class StaticPatchTransformerAggregation(PatchTransformerAggregation):
    """``PatchTransformerAggregation``; refused inside a compiled step unless the width is given."""

    _staticgraph: BatchContext

    def forward(
        self,
        x: Tensor,
        index: Tensor,
        *args: Any,
        max_num_elements: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Rows ``[N, F]`` to ``[groups, out]``; a compiled step needs ``max_num_elements``,
        elsewhere it comes from the real counts."""
        context = self._staticgraph
        _refuse_open_width(self, context, max_num_elements)
        if context.batch is not None and max_num_elements is None:
            max_num_elements = widest(context, index) + 1  # as the layer computes it from counts
        return super().forward(x, index, *args, max_num_elements=max_num_elements, **kwargs)


class StaticEquilibriumAggregation(EquilibriumAggregation):
    """``EquilibriumAggregation``; its regulariser is a mean over real groups."""

    _staticgraph: BatchContext

    def reg(self, y: Tensor) -> Tensor:
        """The penalty of outputs ``[groups, out]``: the mean over real groups."""
        context = self._staticgraph
        rows = None if context.batch is None else context.find_rows(len(y))
        if rows is None:
            return super().reg(y)
        squares = y.square().sum(dim=-1)
        mean = torch.where(rows.mask, squares, 0).sum() / rows.mask.sum().clamp(min=1)
        return self.softplus(self.lamb) * mean

    def init_output(self, dim_size: int) -> Tensor:
        """Zeros ``[groups, out]`` to start from, which require a gradient."""
        if self._staticgraph.batch is None:
            return super().init_output(dim_size)
        # Result of an operation: torch.compile traces no new leaf tensor that requires a gradient.
        zeros = torch.zeros(dim_size, self.output_dim, device=self.lamb.device)
        return zeros + 0 * self.lamb.float()
