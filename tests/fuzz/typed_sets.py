"""Random data sets of several types of nodes and edges: types missing from a graph or from all
graphs, relations in both directions and within one type.

As in :mod:`graph_sets`, a set is a few numbers, and the expected form of a graph in a batch is
computed by a plain sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from support.hetero_graphs import by_destination
from torch_geometric.data import HeteroData

NODES = {"a": 3, "b": 2}  # columns of each type
RELATIONS = (("a", "to", "b"), ("b", "back", "a"), ("a", "near", "a"))
WITH_FEATURES = ("a", "near", "a")


@dataclass(frozen=True)
class TypedSet:
    """A data set.

    Attributes:
        sizes: for each graph, the number of nodes of both types, and the number of edges to
            generate for each relation.
        seed: of the values.
        label: ``graph``, or ``a`` for one label per node of that type.
        missing: whether some labels are NaN.
        more: whether nodes of the second type have an integer each, and graphs two rows of one.
    """

    sizes: tuple[tuple[int, int, tuple[int, int, int]], ...]
    seed: int = 0
    label: str = "graph"
    missing: bool = False
    more: bool = False

    rules = "typed"

    @property
    def levels(self) -> dict[str, str]:
        """For ``from_pyg``: empty, since the types determine every level."""
        return {}

    def graphs(self) -> list[HeteroData]:
        """The graphs, the same on every call."""
        rng = np.random.default_rng(self.seed)
        return [self._graph(rng, a, b, edges) for a, b, edges in self.sizes]

    def expected(self) -> list[HeteroData]:
        """The graphs in a batch's form: edges of each relation stably sorted by destination."""
        return [by_destination(graph) for graph in self.graphs()]

    def _graph(
        self, rng: np.random.Generator, a: int, b: int, edges: tuple[int, int, int]
    ) -> HeteroData:
        rows = {"a": a, "b": b}
        data = HeteroData()
        for kind, columns in NODES.items():
            data[kind].x = torch.from_numpy(rng.normal(size=(rows[kind], columns)))
        for relation, wanted in zip(RELATIONS, edges, strict=True):
            m, n = rows[relation[0]], rows[relation[2]]
            count = wanted if m and n else 0
            ends = [rng.integers(0, max(1, m), count), rng.integers(0, max(1, n), count)]
            data[relation].edge_index = torch.from_numpy(np.stack(ends))
            if relation == WITH_FEATURES:
                data[relation].edge_attr = torch.from_numpy(rng.normal(size=(count, 2)))
        label = rng.normal(size=(1 if self.label == "graph" else a, 1))
        if self.missing:
            label[rng.random(label.shape) < 0.3] = np.nan
        if self.label == "graph":
            data.y = torch.from_numpy(label)
        else:
            data["a"].y = torch.from_numpy(label)
        if self.more:
            data["b"].kind = torch.from_numpy(rng.integers(0, 9, b, dtype=np.int32))
            data.notes = torch.from_numpy(rng.integers(-9, 9, (2, 1)))
        return data


NUMBERS = st.sampled_from((0, 1, 1, 2, 3, 5))
EDGES = st.integers(0, 7)


@st.composite
def typed_sets(draw: st.DrawFn, empty: bool = True, most: int = 7) -> TypedSet:
    """Data sets; with ``empty=False`` every graph has nodes of every type, as PyG's layers need."""
    sizes = draw(
        st.lists(
            st.tuples(NUMBERS, NUMBERS, st.tuples(EDGES, EDGES, EDGES)), min_size=1, max_size=most
        )
    )
    if not empty:
        sizes = [(max(1, a), max(1, b), edges) for a, b, edges in sizes]
    return TypedSet(
        tuple(sizes),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from(("graph", "graph", "a"))),
        draw(st.booleans()),
        draw(st.booleans()),
    )
