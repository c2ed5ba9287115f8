"""Published models that many people train, in their usual form.

Nothing in them is meant for this library, which has kernels for little of what they compute. All
take ``forward(x, edge_index, edge_attr, batch, batch_size)`` of ESOL's molecules.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import (
    AttentiveFP,
    CGConv,
    DeepGCNLayer,
    DenseSAGEConv,
    GENConv,
    GraphConv,
    LayerNorm,
    TopKPooling,
    dense_diff_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import scatter, to_dense_adj, to_dense_batch

ATOM, BOND = 9, 3


class Encoded(nn.Module):
    """Linear encoders, layers over nodes and edges, a mean over each graph, a head."""

    def __init__(self, layer: Callable[[int], nn.Module], hidden: int, layers: int) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Linear(ATOM, hidden), nn.Linear(BOND, hidden)
        self.layers = nn.ModuleList(layer(hidden) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, batch_size: int
    ) -> Tensor:
        rows = self.over_layers(self.atoms(x.float()), edge_index, self.bonds(edge_attr.float()))
        return self.head(global_mean_pool(rows, batch, batch_size))

    def over_layers(self, x: Tensor, edge_index: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index, edges)
        return x


class GatedGCNLayer(nn.Module):
    """Bresson and Laurent, Residual Gated Graph ConvNets, with a normalised gate."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.own, self.value, self.target, self.source, self.edge = (
            nn.Linear(hidden, hidden) for _ in range(5)
        )
        self.norm, self.edge_norm = nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden)

    def forward(self, x: Tensor, edge_index: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        sums = self.target(x)[dst] + self.source(x)[src] + self.edge(edges)
        gates = sums.sigmoid()
        values = scatter(gates * self.value(x)[src], dst, dim_size=x.size(0), reduce="sum")
        whole = scatter(gates, dst, dim_size=x.size(0), reduce="sum")
        new = self.own(x) + values / (whole + 1e-6)
        return x + F.relu(self.norm(new)), edges + F.relu(self.edge_norm(sums))


class GatedGCN(Encoded):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(GatedGCNLayer, hidden, layers)

    def over_layers(self, x: Tensor, edge_index: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x, edges = layer(x, edge_index, edges)
        return x


class CGCNN(Encoded):
    """Xie and Grossman, Crystal graph convolutional neural networks."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(lambda h: CGConv(h, h, batch_norm=True), hidden, layers)


class DeeperGCN(Encoded):
    """Li et al., DeeperGCN, as in PyG's example for ogbn-proteins."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(
            lambda h: DeepGCNLayer(
                GENConv(h, h, aggr="softmax", learn_t=True, num_layers=2, norm="layer"),
                LayerNorm(h),
                nn.ReLU(inplace=True),
                block="res+",
                dropout=0.0,
            ),
            hidden,
            layers,
        )


class FingerPrint(nn.Module):
    """Xiong et al., AttentiveFP."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.model = AttentiveFP(ATOM, hidden, 1, BOND, layers, num_timesteps=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        return self.model(x.float(), edge_index, edge_attr.float(), batch)


class TopK(nn.Module):
    """Gao and Ji, Graph U-Nets: pools by score, as in PyG's example for PROTEINS."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        widths = [ATOM] + [hidden] * (layers - 1)
        self.convs = nn.ModuleList(GraphConv(width, hidden) for width in widths)
        self.pools = nn.ModuleList(TopKPooling(hidden, ratio=0.8) for _ in widths)
        self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, batch_size: int
    ) -> Tensor:
        x, total = x.float(), 0
        for conv, pool in zip(self.convs, self.pools, strict=True):
            x, edge_index, _, batch, *_ = pool(conv(x, edge_index).relu(), edge_index, None, batch)
            pooled = [p(x, batch, batch_size) for p in (global_max_pool, global_mean_pool)]
            total = total + torch.cat(pooled, dim=1)
        return self.head(total)


class DiffPool(nn.Module):
    """Ying et al., Hierarchical graph representation learning with differentiable pooling."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed, self.assign = DenseSAGEConv(ATOM, hidden), DenseSAGEConv(ATOM, 16)
        self.convs = nn.ModuleList(DenseSAGEConv(hidden, hidden) for _ in range(layers - 1))
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        dense, mask = to_dense_batch(x.float(), batch)
        adj = to_dense_adj(edge_index, batch)
        rows, scores = self.embed(dense, adj, mask).relu(), self.assign(dense, adj, mask)
        rows, adj, _, _ = dense_diff_pool(rows, adj, scores, mask)
        for conv in self.convs:
            rows = conv(rows, adj).relu()
        return self.head(rows.mean(1))


PUBLISHED: dict[str, Callable[..., nn.Module]] = {
    "GatedGCN": GatedGCN,
    "CGCNN": CGCNN,
    "DeeperGCN": DeeperGCN,
    "AttentiveFP": FingerPrint,
    "TopK pools": TopK,
    "DiffPool": DiffPool,
}
