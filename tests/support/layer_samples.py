"""Batches that every record of a layer runs over."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch_geometric.data import Data

import staticgraph as sg
from support.parity import CAPACITY, EDGE_WIDTH, NODES, STORE, graphs


def batch_of(made: Iterable[Data]) -> sg.StaticBatch:
    """Returns a batch of all given graphs in the usual capacity."""
    store = sg.GraphStore.from_pyg(list(made), progress=False)
    return sg.StaticBatch.of(store, range(len(store)), CAPACITY)


def hub(graph: Data) -> Data:
    """Returns the graph with edges from every other node to the first, and no others."""
    count = graph.num_nodes - 1
    random = np.random.default_rng(count)
    sources = torch.arange(1, count + 1)
    graph.edge_index = torch.stack([sources, torch.zeros_like(sources)])
    graph.edge_attr = torch.from_numpy(random.standard_normal((count, EDGE_WIDTH)))
    graph.edge_weight = torch.from_numpy(random.random(count) + 0.1)
    graph.edge_type = torch.from_numpy(random.integers(0, 3, count))
    return graph


def tied(graph: Data) -> Data:
    """Returns the graph with equal features everywhere."""
    for key in ("x", "edge_attr", "edge_weight", "pos", "normal"):
        graph[key] = torch.ones_like(graph[key])
    return graph


def single(graph: Data) -> Data:
    """Returns the graph in single precision."""
    for key, value in graph.to_dict().items():
        if value.is_floating_point():
            graph[key] = value.float()
    return graph


SINGLE = batch_of(map(single, graphs()))
NUM_NODES, NUM_EDGES = (int(total) for total in STORE.sizes.sum(0))
EVERY = range(len(NODES))
SAMPLES = {
    "one node": sg.StaticBatch.of(STORE, [1], (5, 9, 3)),
    "exact fit": sg.StaticBatch.of(STORE, EVERY, (NUM_NODES + 1, NUM_EDGES, len(NODES) + 1)),
    "much room": sg.StaticBatch.of(STORE, EVERY, (120, 300, 40)),
    "hubs": batch_of(map(hub, graphs(2))),
    "ties": batch_of(map(tied, graphs(3))),
}
