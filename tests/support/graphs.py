"""Small random graphs, and comparisons of graphs, for tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

import staticgraph as sg


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


LABELLED_CAPACITY = (60, 70, 12)


def labelled_graphs(missing: bool = True) -> list[Data]:
    """Returns ten graphs in float64, with targets of floats, integers and booleans."""
    graphs = drawn_graphs(
        (2 + number % 4 for number in range(10)),
        x=("node", 3),
        energy=("graph",),
        gap=("graph",),
        tasks=("graph", 3),
        weight=("graph",),
        charge=("node",),
    )
    for number, data in enumerate(graphs):
        data.kind = torch.tensor([number % 3])
        data.train_mask, data.colour = data.charge < 0.3, torch.arange(data.num_nodes) % 3
        if missing and number % 3 == 0:
            data.energy[:] = torch.nan
        if missing and number % 4 == 1:
            data.gap[:] = torch.nan
            data.tasks[0, number % 3] = torch.nan
            data.charge[0] = torch.nan
    return graphs


def labelled_batch() -> sg.StaticBatch:
    """Returns all of them as a batch; a few labels are missing."""
    return sg.StaticBatch.of(
        sg.GraphStore.from_pyg(labelled_graphs()), range(10), LABELLED_CAPACITY
    )


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
