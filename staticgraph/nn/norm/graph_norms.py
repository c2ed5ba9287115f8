"""PyG's normalisations over the real rows of a padded batch.

Given ``batch``, most of them work graph by graph, so that padding, which has its own graphs, does
not reach real rows; they only need the number of graphs. A mask is needed by any of them without
``batch`` (all nodes are one set, padding included), and for state kept from one batch to the next
(InstanceNorm's running statistics are a mean over graphs, HeteroBatchNorm's over the rows of a
type). Formulas as in each layer of PyG 2.8, with the same weights and buffers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import (
    BatchNorm,
    GraphNorm,
    GraphSizeNorm,
    HeteroBatchNorm,
    InstanceNorm,
    LayerNorm,
    MeanSubtractionNorm,
    PairNorm,
)
from torch_geometric.utils import scatter

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.norm.batch_norm import masked_batch_norm, over_first_rows


def _mean_over_rows(value: Tensor, mask: Tensor) -> Tensor:
    """``[R, F]`` -> ``[1, F]``, the mean over the rows in ``mask`` ``[R, 1]``."""
    count = mask.sum().clamp(min=1).to(value.dtype)
    return torch.where(mask, value, 0).sum(0, keepdim=True) / count


class StaticLayerNorm(LayerNorm):
    """``LayerNorm``: in graph mode without ``batch`` over the real rows."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to the same; over real rows only where all graphs are normalised as one."""
        context = self._staticgraph
        if context.batch is None or self.mode != "graph":
            return super().forward(x, batch, batch_size)
        if batch is not None:
            size = context.size_for(batch) if batch_size is None else batch_size
            return super().forward(x, batch, size)
        if rows := context.real_rows(context.rows_of(x)):  # outside of a compiled step
            return over_first_rows(super().forward, x, rows)
        mask = context.column_mask(x)
        x = torch.where(mask, x - _mean_over_rows(x, mask).mean(), 0)
        numbers = mask.sum().clamp(min=1).to(x.dtype) * x.size(-1)
        out = x / ((x.square().sum() / numbers).sqrt() + self.eps)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight + self.bias
        return out


class StaticInstanceNorm(InstanceNorm):
    """``InstanceNorm``: running statistics are a mean over real graphs."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to the same, each graph by its own statistics."""
        context = self._staticgraph
        if context.batch is None:
            return super().forward(x, batch, batch_size)
        from_batch = self.training or not self.track_running_stats
        if batch is None:
            return self._one_instance(x) if from_batch else super().forward(x)
        size = context.size_for(batch) if batch_size is None else batch_size
        if not from_batch:
            return super().forward(x, batch, size)
        counts = scatter(x.new_ones(len(x), 1), batch, 0, size, "sum").clamp(min=1)
        mean = scatter(x, batch, 0, size, "sum") / counts
        x = x - mean.index_select(0, batch)
        squares = scatter(x * x, batch, 0, size, "sum")
        if self.running_mean is not None and self.training:
            self._update_running(mean.detach(), (squares / (counts - 1).clamp(min=1)).detach())
        out = x / (squares / counts + self.eps).sqrt().index_select(0, batch)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.view(1, -1) + self.bias.view(1, -1)
        return out

    def _update_running(self, mean: Tensor, unbiased: Tensor) -> None:
        """Updates in place by the mean over real graphs of ``[G, C]`` means and variances."""
        assert self.running_mean is not None
        assert self.running_var is not None
        groups = self._staticgraph.column_mask(mean)
        momentum = groups.any().to(mean.dtype) * (self.momentum or 0.0)
        self.running_mean.lerp_(_mean_over_rows(mean, groups)[0], momentum)
        self.running_var.lerp_(_mean_over_rows(unbiased, groups)[0], momentum)

    def _one_instance(self, x: Tensor) -> Tensor:
        """Treats all nodes as one instance, like torch's ``instance_norm`` over ``[1, C, n]``."""
        mask = self._staticgraph.column_mask(x)
        count = mask.sum()
        mean = _mean_over_rows(x, mask)
        centred = torch.where(mask, x - mean, 0)
        var = _mean_over_rows(centred.square(), mask)
        if self.running_mean is not None and self.training:
            unbiased = (var * (count.to(var.dtype) / (count - 1).clamp(min=1))).detach()
            factor = (count > 0).to(var.dtype) * (self.momentum or 0.0)
            assert self.running_var is not None
            self.running_mean.lerp_(mean.detach()[0], factor)
            self.running_var.lerp_(unbiased[0], factor)
        out = centred * (var + self.eps).rsqrt()
        if self.weight is not None and self.bias is not None:
            out = out * self.weight + self.bias
        return torch.where(mask, out, 0)


class StaticGraphNorm(GraphNorm):
    """``GraphNorm``: without ``batch``, padding is a second graph and not part of the first."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to the same; without ``batch``, padding is a separate graph."""
        context = self._staticgraph
        if context.batch is None:
            return super().forward(x, batch, batch_size)
        if batch is None:
            return super().forward(x, _padding_apart(context, x), 2)
        return super().forward(
            x, batch, context.size_for(batch) if batch_size is None else batch_size
        )


class StaticGraphSizeNorm(GraphSizeNorm):
    """``GraphSizeNorm``: without ``batch``, padding is a second graph; no division by zero."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to the same; without ``batch``, padding is a separate graph."""
        context = self._staticgraph
        if context.batch is None or batch is not None:
            return super().forward(x, batch, batch_size)
        return super().forward(x, _padding_apart(context, x), 2)


class StaticPairNorm(PairNorm):
    """``PairNorm``: without ``batch``, the means are over the real rows."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to the same; over real rows only where all graphs are normalised as one."""
        context = self._staticgraph
        if context.batch is None or batch is not None:
            return super().forward(x, batch, batch_size)
        mask = context.column_mask(x)
        x = torch.where(mask, x - _mean_over_rows(x, mask), 0)
        if self.scale_individually:
            return self.scale * x / (self.eps + x.norm(2, -1, keepdim=True))
        squares = _mean_over_rows(x.square().sum(-1, keepdim=True), mask)
        return self.scale * x / (self.eps + squares).sqrt()


class StaticMeanSubtractionNorm(MeanSubtractionNorm):
    """``MeanSubtractionNorm``: without ``batch``, the mean is over the real rows."""

    _staticgraph: BatchContext

    def forward(
        self, x: Tensor, batch: Tensor | None = None, dim_size: int | None = None
    ) -> Tensor:
        """``[N, F]`` to the same; over real rows only where all graphs are one."""
        context = self._staticgraph
        if context.batch is None or batch is not None:
            return super().forward(x, batch, dim_size)
        mask = context.column_mask(x)
        return torch.where(mask, x - _mean_over_rows(x, mask), 0)


class StaticHeteroBatchNorm(HeteroBatchNorm):
    """``HeteroBatchNorm``: moments of a type over its real rows; types that do not occur keep
    their running statistics, without a host read."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """``[N, F]`` to the same; each type's statistics over its real rows."""
        context = self._staticgraph
        if context.batch is None or (not self.training and self.track_running_stats):
            return super().forward(x, type_vec)
        mask = context.mask_of(x)
        types = self.num_types
        with torch.no_grad():  # as in the stock layer, whose moments carry no gradient
            owner = torch.where(mask, type_vec, types)
            counts = scatter(x.new_ones(len(x), 1), owner, 0, types + 1, "sum")[:types]
            safe = counts.clamp(min=1)
            mean = scatter(x, owner, 0, types + 1, "sum")[:types] / safe
            square = scatter(x * x, owner, 0, types + 1, "sum")[:types] / safe
            var = square - mean * mean
            if self.training and self.track_running_stats:
                self._update_running(mean, var, counts > 0)
        out = (x - mean[type_vec]) / var.clamp(self.eps).sqrt()[type_vec]
        if self.affine:
            out = out * self.weight[type_vec] + self.bias[type_vec]
        return torch.where(mask[:, None], out, 0)

    def _update_running(self, mean: Tensor, var: Tensor, seen: Tensor) -> None:
        assert isinstance(self.num_batches_tracked, Tensor)
        assert isinstance(self.running_mean, Tensor)
        assert isinstance(self.running_var, Tensor)
        factor = seen.to(mean.dtype)
        if self.momentum is None:
            self.num_batches_tracked.add_(seen.any())
            factor = factor / self.num_batches_tracked.clamp(min=1)
        else:
            factor = factor * self.momentum
        self.running_mean.lerp_(mean, factor.expand_as(mean))
        self.running_var.lerp_(var, factor.expand_as(var))


def _padding_apart(context: BatchContext, x: Tensor) -> Tensor:
    """``[R]`` int64: 0 on real rows, 1 on padding."""
    return (~context.mask_of(x)).long()


class MaskedPygBatchNorm(BatchNorm):
    """PyG's ``BatchNorm``: the layer inside is converted.

    Only ``allow_single_element`` is handled here, since it depends on the number of real rows.
    """

    _staticgraph: BatchContext

    def forward(self, x: Tensor) -> Tensor:
        """``[N, F]`` to the same; a single real row is normalised by the running statistics, as PyG
        allows."""
        context = self._staticgraph
        if context.batch is None or not self.allow_single_element or not self.training:
            return super().forward(x)
        norm, mask = self.module, context.mask_of(x)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        single = mask.sum() <= 1
        before = [norm.running_mean.clone(), norm.running_var.clone()]
        tracked = norm.num_batches_tracked.clone()
        as_alone = F.batch_norm(x, before[0], before[1], norm.weight, norm.bias, False, 0, norm.eps)
        out = masked_batch_norm(norm, x, mask)
        norm.running_mean.copy_(torch.where(single, before[0], norm.running_mean))
        norm.running_var.copy_(torch.where(single, before[1], norm.running_var))
        norm.num_batches_tracked.copy_(torch.where(single, tracked, norm.num_batches_tracked))
        return torch.where(single, torch.where(mask[:, None], as_alone, 0), out)
