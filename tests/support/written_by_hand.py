"""Models as users write them: custom trunks, encoders and layers around PyG's layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINEConv,
    GPSConv,
    MessagePassing,
    PNAConv,
    SAGEConv,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import degree, scatter

ATOMS, BONDS = (53, 1, 5, 7, 5, 1, 3, 2, 2), (4, 3, 2)  # of ESOL
DEGREES = torch.tensor([0, 40, 60, 30, 10, 2])


class Tables(nn.Module):
    """The sum of one embedding per column, as in OGB's encoders."""

    def __init__(self, sizes, hidden):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, hidden) for size in sizes)

    def forward(self, x):
        out = 0
        for i in range(x.shape[1]):
            out += self.tables[i](x[:, i])
        return out


class OwnConv(MessagePassing):
    """A custom message."""

    def __init__(self, hidden):
        super().__init__(aggr="add")
        self.lin = nn.Linear(hidden, hidden)
        self.out = nn.Linear(2 * hidden, hidden)

    def forward(self, x, edge_index, edge_attr):
        summed = self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr)
        return self.out(torch.cat([x, summed], dim=-1))

    def message(self, x_j, edge_attr):
        return F.silu(x_j + edge_attr)


class LearntByHand(nn.Module):
    """GCN with learnt edge weights and explicit normalisation: roots of the degrees have gradients,
    too."""

    def __init__(self, hidden):
        super().__init__()
        self.lin, self.weight = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        weight = self.weight(edge_attr).sigmoid().squeeze(-1)
        root = (scatter(weight, dst, dim_size=x.size(0)) + 1).pow(-0.5)
        norm, rows = root[src] * weight * root[dst], self.lin(x)
        summed = scatter(norm.unsqueeze(-1) * rows[src], dst, dim_size=x.size(0))
        return summed + (root * root).unsqueeze(-1) * rows


class EdgeMLP(MessagePassing):
    """A message computed by a network from both ends and the edge, as in interaction networks."""

    def __init__(self, hidden):
        super().__init__(aggr="add")
        self.mlp = nn.Sequential(
            nn.Linear(3 * hidden, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x, edge_index, edge_attr):
        return self.out(self.propagate(edge_index, x=x, edge_attr=edge_attr)) + x

    def message(self, x_i, x_j, edge_attr):
        return self.mlp(torch.cat([x_i, x_j, edge_attr], dim=-1))


class Differences(MessagePassing):
    """Edge convolution with maximum, mean and variance of one linear message."""

    def __init__(self, hidden):
        super().__init__(aggr=["max", "mean", "var"])
        self.lin, self.out = nn.Linear(2 * hidden, hidden), nn.Linear(3 * hidden, hidden)

    def forward(self, x, edge_index):
        return self.out(self.propagate(edge_index, x=x))

    def message(self, x_i, x_j):
        return F.leaky_relu(self.lin(torch.cat([x_i, x_j - x_i], dim=-1)), 0.1)


class OverriddenGINE(GINEConv):
    """A subclass with its own message."""

    def message(self, x_j, edge_attr):
        return torch.relu(edge_attr + x_j)


class MoleculeGIN(MessagePassing):
    """OGB's GIN layer."""

    def __init__(self, hidden):
        super().__init__(aggr="add")
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 2 * hidden),
            nn.BatchNorm1d(2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden),
        )
        self.eps = nn.Parameter(torch.tensor([0.0]))
        self.bonds = Tables(BONDS, hidden)

    def forward(self, x, edge_index, edge_attr):
        summed = self.propagate(edge_index, x=x, edge_attr=self.bonds(edge_attr))
        return self.mlp((1 + self.eps) * x + summed)

    def message(self, x_j, edge_attr):
        return F.relu(x_j + edge_attr)


class MoleculeGCN(MessagePassing):
    """OGB's GCN layer, with explicit normalisation."""

    def __init__(self, hidden):
        super().__init__(aggr="add")
        self.linear = nn.Linear(hidden, hidden)
        self.root = nn.Embedding(1, hidden)
        self.bonds = Tables(BONDS, hidden)

    def forward(self, x, edge_index, edge_attr):
        x, edges = self.linear(x), self.bonds(edge_attr)
        row, col = edge_index
        deg = degree(row, x.size(0), dtype=x.dtype) + 1
        root = deg.pow(-0.5)
        root[root == float("inf")] = 0
        own_rows = F.relu(x + self.root.weight) * 1.0 / deg.view(-1, 1)
        return (
            self.propagate(edge_index, x=x, edge_attr=edges, norm=root[row] * root[col]) + own_rows
        )

    def message(self, x_j, edge_attr, norm):
        return norm.view(-1, 1) * F.relu(x_j + edge_attr)


class Trunk(nn.Module):
    """Encoders; layers with norm, ReLU, dropout and residual sum; pool and head."""

    def __init__(self, conv, hidden=16, layers=2, edges=True, dropout=0.0, pool=global_mean_pool):
        super().__init__()
        self.atoms = Tables(ATOMS, hidden)
        self.bonds = Tables(BONDS, hidden) if edges else None
        self.convs = nn.ModuleList(conv(hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.dropout, self.pool = dropout, pool
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.atoms(x)
        edges = () if self.bonds is None else (self.bonds(edge_attr),)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            new = F.relu(norm(conv(h, edge_index, *edges)))
            h = F.dropout(new, self.dropout, training=self.training) + h
        return self.head(self.pool(h, batch))


class VirtualNode(nn.Module):
    """OGB's molecule network with a virtual node."""

    def __init__(self, conv, hidden=16, layers=2, dropout=0.0):
        super().__init__()
        self.atoms, self.virtual = Tables(ATOMS, hidden), nn.Embedding(1, hidden)
        self.convs = nn.ModuleList(conv(hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(hidden, 2 * hidden),
                nn.BatchNorm1d(2 * hidden),
                nn.ReLU(),
                nn.Linear(2 * hidden, hidden),
                nn.BatchNorm1d(hidden),
                nn.ReLU(),
            )
            for _ in range(layers - 1)
        )
        self.dropout = dropout
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        virtual = self.virtual(torch.zeros(batch_size, dtype=torch.long, device=x.device))
        hidden = [self.atoms(x)]
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            hidden[layer] = hidden[layer] + virtual[batch]
            h = norm(conv(hidden[layer], edge_index, edge_attr))
            last = layer == len(self.convs) - 1
            h = F.dropout(h if last else F.relu(h), self.dropout, training=self.training)
            hidden.append(h + hidden[layer])
            if not last:
                pooled = global_add_pool(hidden[layer], batch, batch_size) + virtual
                new = self.mlps[layer](pooled)
                virtual = virtual + F.dropout(new, self.dropout, training=self.training)
        return self.head(global_mean_pool(hidden[-1], batch, batch_size))


class Transformer(nn.Module):
    """GPS layers in a custom trunk."""

    def __init__(self, hidden=16, layers=2, dropout=0.0):
        super().__init__()
        self.atoms, self.bonds = Tables(ATOMS, hidden), Tables(BONDS, hidden)
        self.convs = nn.ModuleList(
            GPSConv(hidden, gine(hidden), heads=4, dropout=dropout) for _ in range(layers)
        )
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h, edges = self.atoms(x), self.bonds(edge_attr)
        for conv in self.convs:
            h = conv(h, edge_index, batch, edge_attr=edges)
        return self.head(global_add_pool(h, batch))


def gine(hidden, **options):
    mlp = nn.Sequential(
        nn.Linear(hidden, 2 * hidden),
        nn.BatchNorm1d(2 * hidden),
        nn.ReLU(),
        nn.Linear(2 * hidden, hidden),
    )
    return GINEConv(mlp, **options)


def overridden(hidden):
    return OverriddenGINE(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(inplace=True)))


def pna(hidden):
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification"]
    return PNAConv(hidden, hidden, aggregators, scalers, DEGREES, edge_dim=hidden, towers=2)


def pna_apart(hidden):
    """Returns PNA with separate columns per tower, the other scalers, and no edge features."""
    aggregators, scalers = ["std", "sum", "max"], ["attenuation", "linear", "inverse_linear"]
    options = {"towers": 2, "divide_input": True, "pre_layers": 2, "train_norm": True}
    return PNAConv(hidden, hidden, aggregators, scalers, DEGREES, **options)


def gat(hidden, **options):
    return GATConv(hidden, hidden // 4, heads=4, **options)


def gatv2(hidden, **options):
    return GATv2Conv(hidden, hidden // 4, heads=4, **options)


MODELS = {
    "gine": lambda **o: Trunk(gine, **o),
    "gine, own message": lambda **o: Trunk(overridden, pool=global_add_pool, **o),
    "gcn": lambda **o: Trunk(lambda h: GCNConv(h, h), edges=False, **o),
    "gcn by hand, learnt weights": lambda **o: Trunk(LearntByHand, **o),
    "sage": lambda **o: Trunk(lambda h: SAGEConv(h, h), edges=False, pool=global_max_pool, **o),
    "gat": lambda **o: Trunk(gat, edges=False, **o),
    "gat, edges": lambda **o: Trunk(lambda h: gat(h, edge_dim=h), **o),
    "gatv2": lambda **o: Trunk(gatv2, edges=False, **o),
    "transformer": lambda **o: Trunk(
        lambda h: TransformerConv(h, h // 4, heads=4, edge_dim=h), **o
    ),
    "pna": lambda **o: Trunk(pna, **o),
    "pna, apart": lambda **o: Trunk(pna_apart, edges=False, **o),
    "pna, one tower": lambda **o: Trunk(
        lambda h: PNAConv(h, h, ["mean", "min"], ["identity", "linear"], DEGREES, edge_dim=h), **o
    ),
    "own": lambda **o: Trunk(OwnConv, **o),
    "own, edge mlp": lambda **o: Trunk(EdgeMLP, **o),
    "own, differences": lambda **o: Trunk(Differences, edges=False, **o),
    "molecule gin": lambda **o: VirtualNode(MoleculeGIN, **o),
    "molecule gcn": lambda **o: VirtualNode(MoleculeGCN, **o),
    "gps": lambda **o: Transformer(**o),
}
