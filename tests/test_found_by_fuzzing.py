"""What the fuzzer of ``tests/fuzz`` found, one small test each, so that it stays mended."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

import staticgraph as sg


class Clusters(Data):
    """Nodes put into clusters that nothing has rows of."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "cluster_index":
            return torch.tensor([[self.num_nodes], [self.num_clusters]])
        return super().__inc__(key, value, *args, **kwargs)


def graph(nodes: int = 2, **more) -> Data:
    return Data(
        x=torch.rand(nodes, 3), edge_index=torch.zeros(2, 0).long(), y=torch.rand(1, 1), **more
    )


def batch_of(graphs: list[Data], pointers: bool = False) -> sg.StaticBatch:
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    return next(iter(sg.StaticLoader(store, sg.plan_buckets(store, 2), pointers=pointers)))


def test_an_index_that_counts_nothing_comes_back():
    """Where every graph adds zero, its rule names no level."""
    empty = Clusters(
        **graph(0).to_dict(), num_clusters=0, cluster_index=torch.zeros(2, 0).long(), num_nodes=0
    )
    (found,) = batch_of([empty]).to_data_list()
    assert found.cluster_index.shape == (2, 0)
    assert found.__inc__("cluster_index", found.cluster_index) == 0


def test_a_field_of_graphs_may_have_no_columns():
    graphs = [graph(n, note=torch.zeros(1, 0), notes=torch.zeros(3, 0)) for n in (1, 2)]
    batch = batch_of(graphs)
    assert batch.note.shape == (batch.num_graphs, 0)
    assert batch.notes.shape == (3 * batch.num_graphs, 0)
    assert [tuple(g.notes.shape) for g in batch.to_data_list()] == [(3, 0), (3, 0)]
