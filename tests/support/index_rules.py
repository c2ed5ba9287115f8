"""Graph classes with fields that index more than nodes, by PyG's rules for custom classes."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data


class Triplets(Data):
    """Pairs of edges that share a node, as in DimeNet: values that index edges."""

    def __inc__(self, key, value, *args, **kwargs):
        return self.num_edges if key == "triplets" else super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key, value, *args, **kwargs):
        return 1 if key == "triplets" else super().__cat_dim__(key, value, *args, **kwargs)


def ints(rng: np.random.Generator, high: int, *shape: int) -> torch.Tensor:
    """Returns numbers from 0 up to ``high``, which is left out."""
    return torch.from_numpy(rng.integers(0, max(1, high), shape))


def base(rng: np.random.Generator, n: int) -> dict:
    """Returns the fields of a graph of ``n`` nodes, whose edges have their number as feature."""
    e = int(rng.integers(0, 3 * n))
    return {
        "x": torch.from_numpy(rng.standard_normal((n, 2))),
        "edge_index": ints(rng, n, 2, e),
        "edge_attr": torch.arange(e)[:, None].double(),
        "y": torch.from_numpy(rng.standard_normal((1, 1))),
    }


def triplets(rng: np.random.Generator, n: int) -> Triplets:
    """Returns a graph of ``n`` nodes with random pairs of edges, and indices of nodes."""
    values = base(rng, n)
    e = values["edge_index"].size(1)
    t = int(rng.integers(0, 2 * e + 1)) if e else 0
    return Triplets(
        **values,
        triplets=ints(rng, e, 2, t),
        angle=torch.from_numpy(rng.standard_normal(t)),
        reverse_index=ints(rng, n, e),
        root_index=int(rng.integers(0, n)),
    )


class Pair(Data):
    """Two graphs, as in PyG's own example, and an index that joins them."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "edge_index_s":
            return self.x_s.size(0)
        if key == "edge_index_t":
            return self.x_t.size(0)
        if key == "assignment_index":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        return super().__inc__(key, value, *args, **kwargs)


class Bipartite(Data):
    """PyG's example of mini-batching, verbatim: edges lead from sources to targets."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "edge_index":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        return super().__inc__(key, value, *args, **kwargs)


def bipartite(rng: np.random.Generator, sources: int) -> Bipartite:
    """Returns a graph with these sources, up to six targets and as many as eleven edges."""
    targets, edges = int(rng.integers(1, 7)), int(rng.integers(0, 12))
    ends = np.stack([rng.integers(0, sources, edges), rng.integers(0, targets, edges)])
    return Bipartite(
        x_s=torch.from_numpy(rng.standard_normal((sources, 3))),
        x_t=torch.from_numpy(rng.standard_normal((targets, 2))),
        edge_index=torch.from_numpy(ends),
        edge_attr=torch.from_numpy(rng.standard_normal((edges, 4))),
        y=torch.from_numpy(rng.standard_normal((1, 1))),
    )


class Clusters(Data):
    """Nodes assigned to clusters, which have no field except their number."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "cluster_index":
            return torch.tensor([[self.num_nodes], [self.num_clusters]])
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key, value, *args, **kwargs):
        return None if key == "cell" else super().__cat_dim__(key, value, *args, **kwargs)
