"""The model zoo's own forward with norm, ReLU and residual sum joined, and pooling by segments.

In any other model these stand in the user's code between the layers, where an exchange of layers
cannot reach; Inductor joins them there on a GPU.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GPSConv, global_add_pool, global_mean_pool

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.kernels.segments import segment_sum
from staticgraph.models.graph_model import GraphModel
from staticgraph.nn.fused.conv import handing_on
from staticgraph.nn.fused.encoder import Folded, FusedEncoder, written_out
from staticgraph.nn.fused.gps import FusedGPSConv
from staticgraph.nn.fused.layer import Fused, unhooked
from staticgraph.nn.fused.norm import FusedBatchNorm1d

# Pools with a fused form, and whether they take the mean.
_MEAN = {global_add_pool: False, global_mean_pool: True}


class FusedGraphModel(Fused, GraphModel):
    """Takes the place of ``models.graph_model.GraphModel``, with the same state."""

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
        edges = None
        if self.edge_encoder is not None and edge_attr is not None:
            edges = _encoded(self.edge_encoder, edge_attr)
        last = len(self.convs) - 1
        for at, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            if isinstance(conv, FusedGPSConv) and unhooked(conv):
                assert batch is not None
                x, edges = conv.handing_on(x, edge_index, batch, edges, at < last)
            elif isinstance(conv, GPSConv):
                given = {} if edges is None else {"edge_attr": written_out(edges)}
                x = conv(x, edge_index, batch, **given)
            else:
                h, x, edges = handing_on(conv, x, edge_index, edges, at < last)
                x = self._joined(h, norm, x, at)
        return self.head(self._pooled(x, bound))

    def _joined(self, h: Tensor, norm: Module, x: Tensor, at: int) -> Tensor:
        if not unhooked(norm) or not isinstance(norm, FusedBatchNorm1d):
            return x + self.dropout(norm(h).relu())
        if self.training and self.dropout.p:
            if self.dropout.p >= 1 or not unhooked(self.dropout):
                return x + self.dropout(norm.joined(h, relu=True))
            return self.dropped(norm(h), at, self.dropout.p, relu=True, residual=x)
        return norm.joined(h, relu=True, residual=x)

    def _pooled(self, x: Tensor, bound: StaticBatch) -> Tensor:
        if self._mean is None:
            return self.pool(x, bound.batch, bound.num_graphs)
        return segment_sum(x, bound.ptr, mean=self._mean)


def _encoded(encoder: Module, values: Tensor) -> Tensor | Folded:
    """Encoded edges, left as rows of a small table where they are some."""
    if isinstance(encoder, FusedEncoder) and unhooked(encoder):  # pyright: ignore[reportArgumentType]
        return encoder.folding(values)
    return encoder(values)
