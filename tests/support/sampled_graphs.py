"""Samples, their edges as lists, and GCN by its definition."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.nn import GATConv, MessagePassing, SAGEConv

from staticgraph.outofcore.buffer.resident import Neighbours
from staticgraph.outofcore.sampling.dense import DenseSampler


def simple_edges(rows: int, edges: int, seed: int) -> np.ndarray:
    """Returns distinct edges without self-loops."""
    ends = np.random.default_rng(seed).integers(0, rows, (2, edges))
    return np.unique(ends[:, ends[0] != ends[1]], axis=1)


def sampled(rows=30, edges=150, fanouts=(3, 4), seeds=5, seed=0):
    neighbours = Neighbours.of(*simple_edges(rows, edges, seed), rows)
    sampler = DenseSampler(neighbours, fanouts)
    chosen = np.random.default_rng(seed).permutation(rows)[:seeds]
    return sampler, chosen, sampler.sample(chosen, seed)


def edge_list(sample) -> torch.Tensor:
    """Returns the sampled edges as positions in ``sample.nodes``, from neighbour to node."""
    pairs = []
    for hop, drawn in enumerate(sample.draws):
        for i, row in enumerate(drawn):
            pairs += [(int(p), sample.hops[hop] + i) for p in row if p >= 0]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


class WeightedSum(MessagePassing):
    def forward(self, x, edge_index, weight):
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j, weight):
        return weight.unsqueeze(-1) * x_j


def reference(layer, x, sample, degrees):
    """Computes a layer with plain PyG over the unpadded sample, for all nodes."""
    edges = edge_list(sample)
    if isinstance(layer, SAGEConv | GATConv):
        return layer(x, edges)
    # GCN with the graph's degrees; a factor compensates for neighbours that were not sampled. Each
    # node has exactly one self-loop, whatever loops the graph has.
    edges = edges[:, edges[0] != edges[1]]
    degree = torch.from_numpy(degrees[sample.nodes]).to(x.dtype)
    taken = torch.zeros_like(degree).index_add_(0, edges[1], torch.ones(edges.size(1)).to(x.dtype))
    loops = torch.arange(len(degree)).repeat(2, 1)
    source, target = edges
    weight = (degree / taken.clamp(min=1))[target] / (
        (degree[source] + 1) * (degree[target] + 1)
    ).sqrt()
    every = torch.cat([edges, loops], 1)
    weights = torch.cat([weight, 1 / (degree + 1)])
    return WeightedSum()(layer.lin(x), every, weights) + layer.bias
