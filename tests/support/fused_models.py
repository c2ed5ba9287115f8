"""Models around each layer that has a kernel.

There is a layer before and one after it, so that the gradients of its inputs, both features and
edges, are compared as well.
"""

from __future__ import annotations

import copy

from torch import nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    SAGEConv,
    global_mean_pool,
)

import staticgraph as sg
from support.parity import CAPACITY, EDGE_WIDTH, NODES, STORE, WIDTH

BATCH = sg.StaticBatch.of(STORE, range(len(NODES)), CAPACITY, pointers=True)


class Model(nn.Module):
    """Encoders, a layer, a norm, the same layer again, a pool and a head."""

    def __init__(self, conv, edges=None, pool=global_mean_pool):
        super().__init__()
        self.node_encoder = nn.Linear(WIDTH, WIDTH)
        self.edge_encoder = nn.Linear(EDGE_WIDTH, EDGE_WIDTH)
        self.first, self.second = conv, copy.deepcopy(conv)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.edges, self.pool, self.head = edges, pool, nn.Linear(WIDTH, 2)
        self.double()

    def forward(self, x, edge_index, edge_attr, edge_weight, batch):
        x = self.node_encoder(x)
        given = []
        if self.edges == "weight":
            given = [edge_weight]
        elif self.edges == "attr":
            given = [self.edge_encoder(edge_attr)]
        x = self.norm(self.first(x, edge_index, *given)).relu()
        x = self.second(x, edge_index, *given)
        return self.head(self.pool(x, batch))


def call(model, batch):
    return model(batch.x, batch.edge_index, batch.edge_attr, batch.edge_weight, batch.batch)


def gcn(**options):
    return GCNConv(WIDTH, WIDTH, **options)


def gat(kind, **options):
    heads = options.setdefault("heads", 2)
    width = WIDTH // heads if options.get("concat", True) else WIDTH
    return kind(WIDTH, width, **options)


def linear():
    return nn.Linear(WIDTH, WIDTH)


LAYERS = {
    "gcn": lambda: Model(gcn()),
    "gcn weighted": lambda: Model(gcn(), "weight"),
    "gcn improved": lambda: Model(gcn(improved=True)),
    "gcn without loops": lambda: Model(gcn(add_self_loops=False), "weight"),
    "gcn as it is": lambda: Model(gcn(normalize=False), "weight"),
    "gcn as it is, mean": lambda: Model(gcn(normalize=False, aggr="mean")),
    "graph": lambda: Model(GraphConv(WIDTH, WIDTH)),
    "graph weighted": lambda: Model(GraphConv(WIDTH, WIDTH), "weight"),
    "graph max": lambda: Model(GraphConv(WIDTH, WIDTH, aggr="max")),
    "sage max": lambda: Model(SAGEConv(WIDTH, WIDTH, aggr="max")),
    "gin max": lambda: Model(GINConv(linear(), aggr="max", train_eps=True)),
    "gine max": lambda: Model(GINEConv(linear(), edge_dim=EDGE_WIDTH, aggr="max"), "attr"),
}
for name, kind in (("gat", GATConv), ("gatv2", GATv2Conv)):
    LAYERS |= {
        name: lambda kind=kind: Model(gat(kind)),
        f"{name} mean of heads": lambda kind=kind: Model(gat(kind, heads=3, concat=False)),
        f"{name} without loops": lambda kind=kind: Model(gat(kind, add_self_loops=False)),
        f"{name} residual": lambda kind=kind: Model(gat(kind, residual=True, bias=False)),
        f"{name} edges": lambda kind=kind: Model(gat(kind, edge_dim=EDGE_WIDTH), "attr"),
        f"{name} edges, sum": lambda kind=kind: Model(
            gat(kind, edge_dim=EDGE_WIDTH, fill_value="add"), "attr"
        ),
        f"{name} edges, without loops": lambda kind=kind: Model(
            gat(kind, edge_dim=EDGE_WIDTH, add_self_loops=False, heads=1), "attr"
        ),
        f"{name} one number an edge": lambda kind=kind: Model(
            gat(kind, edge_dim=1, fill_value=0.5), "weight"
        ),
    }
LAYERS["gatv2 shared"] = lambda: Model(gat(GATv2Conv, share_weights=True))
