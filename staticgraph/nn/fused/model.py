"""The model zoo's own forward with norm, ReLU and residual sum joined, and pooling by segments.

In any other model these stand in the user's code between the layers, where an exchange of layers
cannot reach; Inductor joins them there on a GPU.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GPSConv, global_add_pool, global_mean_pool

from staticgraph.batch import StaticBatch
from staticgraph.kernels.segment_sum import segment_sum
from staticgraph.models import GraphModel
from staticgraph.nn.fused.layer import Fused
from staticgraph.nn.fused.norm import FusedBatchNorm1d

# Pools with a fused form, and whether they take the mean.
_MEAN = {global_add_pool: False, global_mean_pool: True}


class FusedGraphModel(Fused, GraphModel):
    """Takes the place of :class:`staticgraph.models.GraphModel`, with the same state."""

    _mean: bool | None

    def prepare(self) -> None:
        # A runner exchanges PyG's pools for its own while a step runs, so look now.
        self._mean = _MEAN.get(self.pool)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        bound = self.batch
        fits = bound is not None and batch is bound.batch
        if not self.use(None if fits else "no batch is bound, or batch is not its own"):
            return super().forward(x, edge_index, edge_attr, batch, batch_size)
        assert bound is not None
        x = self.node_encoder(x)
        edges = {}
        if self.edge_encoder is not None and edge_attr is not None:
            edges["edge_attr"] = self.edge_encoder(edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if isinstance(conv, GPSConv):
                x = conv(x, edge_index, batch, **edges)
            else:
                x = self._joined(conv(x, edge_index, **edges), norm, x)
        return self.head(self._pooled(x, bound))

    def _joined(self, h: Tensor, norm: Module, x: Tensor) -> Tensor:
        hooked = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks
        if hooked or not isinstance(norm, FusedBatchNorm1d):
            return x + self.dropout(norm(h).relu())
        if self.training and self.dropout.p:
            return x + self.dropout(norm.joined(h, relu=True))
        return norm.joined(h, relu=True, residual=x)

    def _pooled(self, x: Tensor, bound: StaticBatch) -> Tensor:
        if self._mean is None:
            return self.pool(x, bound.batch, bound.num_graphs)
        return segment_sum(x, bound.ptr, mean=self._mean)
