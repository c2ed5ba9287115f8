"""The naive way to fixed shapes: every PyG batch is padded with zeros to the largest one, or up to
powers of two.

This is what a user might write to get CUDA graphs and nothing else: one more graph takes all
padding nodes, and the last padding node takes all padding edges. BatchNorm then sees the padding,
so the losses of a model with BatchNorm differ from the others'; the benchmark's row says so.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

import staticgraph as sg


def largest_batch(store: sg.GraphStore, batch_size: int, seed: int = 0) -> tuple[int, int]:
    """Returns the most nodes and the most edges of any batch of an epoch in random order."""
    ids = np.random.default_rng(seed).permutation(store.splits["train"])
    whole = store.sizes[ids[: len(ids) // batch_size * batch_size], :2]
    sums = whole.reshape(-1, batch_size, 2).sum(1)
    return int(sums[:, 0].max()), int(sums[:, 1].max())


def padded(batch: Batch, nodes: int, edges: int) -> dict[str, Tensor]:
    """Returns a batch's tensors padded to ``nodes + 1`` nodes, ``edges`` edges, one more graph."""
    more_nodes = nodes + 1 - batch.num_nodes
    more_edges = edges - batch.num_edges

    def rows(value: Tensor, count: int, fill: int = 0) -> Tensor:
        return torch.cat([value, value.new_full((count, *value.shape[1:]), fill)])

    return {
        "x": rows(batch.x, more_nodes),
        "edge_index": rows(batch.edge_index.t(), more_edges, nodes).t().contiguous(),
        "edge_attr": rows(batch.edge_attr, more_edges),
        "batch": rows(batch.batch, more_nodes, batch.num_graphs),
        "y": batch.y,
    }
