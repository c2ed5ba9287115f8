"""GINE, GIN, SAGE and GraphConv over destination-sorted edges: one operator instead of four and a
scatter, for sum, mean and max aggregation."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.nn import GINConv, GINEConv, GraphConv, MessagePassing, SAGEConv

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.hooks import message_hooks, unhooked, user_unhooked
from staticgraph.kernels.neighbour_max import neighbour_max
from staticgraph.kernels.neighbour_sum import neighbour_sum, neighbour_sum_handed_on
from staticgraph.nn.fused.encoder import folded
from staticgraph.nn.fused.layer import Fused

SUM = ("add", "sum")
ALL = (*SUM, "mean", "max")


def obstacle(
    conv: MessagePassing,
    batch: StaticBatch | None,
    x: Any,
    edge_index: Any,
    size: Any,
    node_dim: int = -2,
    aggr: tuple[str, ...] = ALL,
) -> str | None:
    """Returns why a layer cannot run fused on these arguments; None if it can."""
    if batch is None:
        return "no batch is bound: it ran outside the runner"
    if edge_index is not batch.edge_index:
        return "edge_index is not the batch's own, so its row pointers do not fit"
    if not isinstance(x, Tensor) or x.dim() != 2 or size is not None:
        return "x is a pair, or a size was given: bipartite layers have no fused form"
    if conv.aggr not in aggr or conv.flow != "source_to_target":
        return f"aggr={conv.aggr!r} with flow={conv.flow!r} has no fused form"
    if conv.explain or conv.decomposed_layers > 1 or conv.node_dim != node_dim:
        return "the layer is explained, decomposed, or has another node_dim"
    if (kind := message_hooks(conv)) is not None:
        return f"hooks of it would not be called: it has a {kind}"
    if not user_unhooked(conv.aggr_module):
        return "hooks of its aggr_module would not be called"
    return None


def summed(
    batch: StaticBatch, x: Tensor, edge: Tensor | None, conv: MessagePassing, **options: Any
) -> Tensor:
    """The layer's sum, mean or max over the batch's edges; options as in :func:`neighbour_sum`."""
    where = _pointers(batch)
    if conv.aggr == "max":
        return neighbour_max(x, edge, *where)
    return neighbour_sum(x, edge, *where, mean=conv.aggr == "mean", **options)


def _pointers(batch: StaticBatch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    src, dst = batch.edge_index
    return src, dst, batch.row_ptr, batch.col_ptr, batch.transpose


def handing_on(
    conv: Any, x: Tensor, edge_index: Any, edges: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A layer's result, and its input for later readers to use instead.

    The gradient of these readers is then added inside the layer's own backward sums, without a
    separate addition.
    """
    if isinstance(conv, (FusedGINEConv, FusedGINConv)) and unhooked(conv):
        found = conv.handing_on(x, edge_index, edges)
        if found is not None:
            return found
    given = {} if edges is None else {"edge_attr": edges}
    return conv(x, edge_index, **given), x


class FusedGINEConv(Fused, GINEConv):
    """``nn((1 + eps) x_i + sum ReLU(x_j + e_ij))`` (Hu et al. 2019, arXiv 1905.12265)."""

    reads_pointers = True

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Any = None
    ) -> Tensor:
        """``[N, F]`` to ``[N, out]``: messages, sum and self term in one operator."""
        batch, reason = self.batch, obstacle(self, self.batch, x, edge_index, size)
        if reason is None and edge_attr is None:
            reason = "edge_attr is missing"
        if not self.use(reason):
            return super().forward(x, edge_index, edge_attr, size)
        assert batch is not None
        assert edge_attr is not None
        code, edge = None, edge_attr
        if self.lin is not None:
            edge = self.lin(edge_attr)
        elif self.aggr != "max" and (fold := folded(edge_attr)) is not None:
            edge, code = fold
        if edge.size(-1) != x.size(-1):
            return super().forward(x, edge_index, edge_attr, size)  # raises PyG's own error
        return self.nn(_with_self(self, batch, x, edge, code=code, transform="relu_add"))

    def handing_on(
        self, x: Tensor, edge_index: Any, edges: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """As the function :func:`handing_on`; None if the stock code or another path must run."""
        batch = self.batch
        plain = self.lin is None and self.aggr != "max"
        if not plain or edges is None or obstacle(self, batch, x, edge_index, None) is not None:
            return None
        fold = folded(edges)
        rows, code = (edges, None) if fold is None else fold
        assert batch is not None
        if rows.size(-1) != x.size(-1):
            return None
        self.use(None)
        found = neighbour_sum_handed_on(
            x,
            rows,
            *_pointers(batch),
            code=code,
            self_eps=self.eps,
            transform="relu_add",
            mean=self.aggr == "mean",
        )
        return self.nn(found.out), found.x


class FusedGINConv(Fused, GINConv):
    """``nn((1 + eps) x_i + sum x_j)`` (Xu et al. 2018, arXiv 1810.00826)."""

    reads_pointers = True

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        """``[N, F]`` to ``[N, out]``: sum and self term in one operator."""
        batch, reason = self.batch, obstacle(self, self.batch, x, edge_index, size)
        if not self.use(reason):
            return super().forward(x, edge_index, size)
        assert batch is not None
        return self.nn(_with_self(self, batch, x, None))

    def handing_on(
        self, x: Tensor, edge_index: Any, edges: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """As the function :func:`handing_on`; None if the stock code or another path must run."""
        batch = self.batch
        plain = self.aggr != "max" and edges is None
        if not plain or obstacle(self, batch, x, edge_index, None) is not None:
            return None
        assert batch is not None
        self.use(None)
        found = neighbour_sum_handed_on(
            x, None, *_pointers(batch), self_eps=self.eps, mean=self.aggr == "mean"
        )
        return self.nn(found.out), found.x


def _with_self(
    conv: GINConv | GINEConv, batch: StaticBatch, x: Tensor, edge: Tensor | None, **options: Any
) -> Tensor:
    """The aggregation plus ``(1 + eps) x_i``; for a sum or mean, both in the same pass."""
    if conv.aggr == "max":
        return summed(batch, x, edge, conv, **options) + (1 + conv.eps) * x
    return summed(batch, x, edge, conv, self_eps=conv.eps, **options)


class FusedSAGEConv(Fused, SAGEConv):
    """``W1 x_i + W2 mean x_j`` (Hamilton et al. 2017, arXiv 1706.02216), with a fused mean."""

    reads_pointers = True

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """``[N, F]`` aggregated over neighbours in one operator."""
        batch = self.batch
        x = _sources(batch, kwargs["x"])
        if not self.use(obstacle(self, batch, x, edge_index, size)):
            return super().propagate(edge_index, size=size, **kwargs)
        assert batch is not None
        return summed(batch, x, None, self)


class FusedGraphConv(Fused, GraphConv):
    """``W1 x_i + W2 sum w_ij x_j`` (Morris et al. 2019, arXiv 1810.02244), with a fused sum."""

    reads_pointers = True

    def propagate(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """``[N, F]`` aggregated over neighbours, weighted if there are weights, in one operator."""
        batch, weight = self.batch, kwargs["edge_weight"]
        x = _sources(batch, kwargs["x"])
        reason = obstacle(self, batch, x, edge_index, size)
        if reason is None and weight is not None:
            if self.aggr == "max":
                reason = "the largest of weighted messages has no fused form"
            elif weight.numel() != edge_index.size(1) or not weight.is_floating_point():
                reason = "edge_weight is not one float per edge"
        if not self.use(reason):
            return super().propagate(edge_index, size=size, **kwargs)
        assert batch is not None
        if weight is None:
            return summed(batch, x, None, self)
        return summed(batch, x, weight.view(-1), self, transform="multiply")


def _sources(batch: StaticBatch | None, x: Any) -> Any:
    """The first of a pair, if it has one row per node of the batch; forward adds the other."""
    if isinstance(x, tuple) and batch is not None and len(x[0]) == batch.num_nodes:
        return x[0]
    return x
