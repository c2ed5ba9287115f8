"""Small random graphs, and comparisons of graphs, for tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data


def random_graph(rng: np.random.Generator, nodes: int, edges: int) -> Data:
    """Returns a graph with fields of every level and several dtypes."""
    edges = edges if nodes else 0
    pairs = rng.integers(0, max(1, nodes), (2, edges))
    return Data(
        x=torch.from_numpy(rng.normal(size=(nodes, 3)).astype(np.float32)),
        z=torch.from_numpy(rng.integers(-4, 300, nodes)),
        edge_index=torch.from_numpy(pairs),
        edge_attr=torch.from_numpy(rng.integers(0, 5, (edges, 2))),
        edge_weight=torch.from_numpy(rng.normal(size=edges)),
        y=torch.from_numpy(rng.normal(size=(1, 2)).astype(np.float32)),
        stress=torch.from_numpy(rng.normal(size=(3, 3))),
        num_nodes=nodes,
    )


@st.composite
def graph_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 8) -> list[Data]:
    """Draws lists of small graphs, including empty and edgeless ones."""
    sizes = draw(
        st.lists(
            st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=min_size, max_size=max_size
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [random_graph(rng, nodes, edges) for nodes, edges in sizes]


def drawn_graphs(
    sizes: Iterable[int], more_edges: int = 0, dtype: torch.dtype = torch.float64, **fields: tuple
) -> list[Data]:
    """Returns graphs of these sizes, with ``2 * n + more_edges`` edges.

    Each field is the level of its rows ("node", "edge" or "graph") and their shape.
    """
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for n in sizes:
        rows = {"node": n, "edge": 2 * n + more_edges, "graph": 1}
        graph = Data(edge_index=torch.randint(n, (2, rows["edge"]), generator=generator))
        for name, (level, *shape) in fields.items():
            graph[name] = torch.randn(rows[level], *shape, generator=generator).to(dtype)
        graphs.append(graph)
    return graphs


def double_graphs(sizes: Iterable[int]) -> list[Data]:
    """Returns graphs of these sizes in float64, with one label each.

    ``x`` has four columns, and there are ``2 * n + 1`` edges.
    """
    return drawn_graphs(sizes, 1, x=("node", 4), y=("graph", 1))


FIELDS = ("x", "z", "edge_attr", "edge_weight", "y", "stress", "edge_index")


def by_destination(graph: Data, of_edges: Iterable[str] = ("edge_attr", "edge_weight")) -> Data:
    """Returns the graph in the form that a batch stores, as an independent oracle.

    Edges are sorted by destination (stable), fields of edges with them, and ``triplets``, which
    number edges, follow.
    """
    ends = graph.edge_index[1].tolist()
    order = torch.tensor(sorted(range(len(ends)), key=ends.__getitem__), dtype=torch.int64)
    now, sorted_graph = order.argsort(), graph.clone()
    for name, value in graph.to_dict().items():
        if name == "edge_index":
            sorted_graph[name] = value[:, order]
        elif name in of_edges:
            sorted_graph[name] = value[order]
        elif name == "triplets":
            sorted_graph[name] = now[value]
    return sorted_graph


def assert_same_graph(actual: Data, expected: Data, names: tuple[str, ...] = FIELDS) -> None:
    """Asserts that every named field is equal in value, dtype and shape."""
    assert actual.num_nodes == expected.num_nodes
    for name in names:
        assert actual[name].dtype == expected[name].dtype, name
        assert torch.equal(actual[name], expected[name]), name
