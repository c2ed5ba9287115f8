"""A small model, graphs that fit its three buckets, and helpers for tests of serving."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv, global_add_pool

import staticgraph as sg
from staticgraph.serving.checked_graphs import Arrays
from support.patience import patience
from support.runners import made_runner

PATIENCE_S = patience(30)  # until a hanging test fails; nothing is timed
# Float64 sums of a few tens of terms, in another order.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SMALL = sg.Capacity(nodes=17, edges=40, graphs=5, max_graph_nodes=8)
LARGE = sg.Capacity(nodes=41, edges=99, graphs=10, max_graph_nodes=8)
HUGE = sg.Capacity(nodes=50, edges=120, graphs=6, max_graph_nodes=30)
BUCKETS = (SMALL, LARGE, HUGE)


def graph(nodes: int, seed: int = 0) -> Data:
    random = torch.Generator().manual_seed(1000 * nodes + seed)
    edges = 2 * nodes if nodes > 1 else 0
    return Data(
        x=torch.randn(nodes, 4, generator=random, dtype=torch.float64),
        edge_index=torch.randint(max(1, nodes), (2, edges), generator=random),
        edge_attr=torch.randn(edges, 4, generator=random, dtype=torch.float64),
    )


def flat_of(graphs: list[Data]) -> Arrays:
    """Returns the graphs in the form that bodies over HTTP are converted to."""
    return {
        "num_nodes": np.array([len(g.x) for g in graphs]),
        "num_edges": np.array([len(g.edge_attr) for g in graphs]),
        "edge_index": np.concatenate([g.edge_index.numpy() for g in graphs], axis=1),
        **{name: np.concatenate([g[name].numpy() for g in graphs]) for name in ("x", "edge_attr")},
    }


class Net(nn.Module):
    """One convolution; with ``out="edge"``, also gives rows per edge. A test can stop it."""

    def __init__(self, out: str = "graph") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = GINEConv(nn.Linear(4, 4)).double()
        self.norm = nn.BatchNorm1d(4).double()
        self.out = out
        self.before = lambda: None

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        self.before()
        if x.isnan().any():  # a graph that the model rejects
            raise RuntimeError("a node has no features\nand more lines")
        h = self.norm(self.conv(x, edge_index, edge_attr))
        pooled = global_add_pool(h, batch, batch_size)
        if self.out == "edge":
            return {"edges": edge_attr + h[edge_index[0]], "graphs": pooled}
        return pooled


def runner_of(out: str = "graph", buckets=BUCKETS) -> sg.StaticGraphRunner:
    store = sg.GraphStore.from_pyg([graph(3), graph(5)])
    plan = sg.BucketPlan(tuple(sorted(buckets)), schema=store.schema)
    return made_runner(Net(out), plan, mode="eager", check_padding=False)


def same(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, **CLOSE)


def broken() -> Data:
    data = graph(3)
    data.x[0, 0] = float("nan")
    return data


class Held:
    """Makes a server's model wait in its forward until it is released."""

    def __init__(self, server: sg.Server) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        server.runner.model.before = self._before

    def _before(self) -> None:
        self.reached.set()
        assert self.go.wait(PATIENCE_S)
