"""Random data sets: every awkward size, dtype and level, and custom index fields.

A set is described by a few numbers and generated from them, so that a failing one prints in one
line and shrinks. The expected form of a graph in a batch (edges sorted by destination, edge
indices remapped) is computed here by a plain sort, not by the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support.graphs import by_destination
from torch import Tensor
from torch_geometric.data import Data

FLOATS = ("float64", "float32", "float16")
WHOLE = ("bool", "uint8", "int8", "int16", "int32", "int64")
LEVELS = ("node", "edge", "graph")
EDGES = ("any", "any", "none", "loops", "duplicates", "star", "both ways")


@dataclass(frozen=True)
class More:
    """One additional field.

    Attributes:
        level: the level of its rows.
        dtype: of the values.
        shape: of a row.
        rows: rows per graph, for the level ``graph``.
        odd: whether floats include NaN, infinities and negative zeros, and integers the extremes
            of the dtype.
        strided: whether the tensor is a view that is not contiguous.
    """

    level: str
    dtype: str
    shape: tuple[int, ...]
    rows: int = 1
    odd: bool = False
    strided: bool = False


@dataclass(frozen=True)
class GraphSet:
    """A data set.

    Attributes:
        sizes: the number of nodes, and of edges to generate, for each graph.
        edges: how edges are generated, one of :data:`EDGES`.
        seed: of the values.
        more: fields besides ``x``, ``edge_attr``, ``edge_weight`` and ``y``, named ``f0``,
            ``f1``, ...
        rules: custom index fields: ``none``, ``triplets``, ``clusters`` or ``both``.
        label: the level of ``y``.
        missing: whether some labels are NaN.
    """

    sizes: tuple[tuple[int, int], ...]
    edges: str = "any"
    seed: int = 0
    more: tuple[More, ...] = ()
    rules: str = "none"
    label: str = "graph"
    missing: bool = False

    @property
    def levels(self) -> dict[str, str]:
        """The level of each field, for ``from_pyg``: some lengths match more than one."""
        own = {f"f{i}": more.level for i, more in enumerate(self.more)}
        fixed = {"x": "node", "edge_attr": "edge", "edge_weight": "edge", "y": self.label}
        if self.rules in ("triplets", "both"):
            own |= {"triplets": "triplets", "triplet_angle": "triplets"}
        if self.rules in ("clusters", "both"):
            own |= {"cluster_index": "node", "num_clusters": "graph"}
        return {**fixed, **own}

    def graphs(self) -> list[Ruled]:
        """The graphs, the same on every call."""
        rng = np.random.default_rng(self.seed)
        return [self._graph(rng, nodes, edges) for nodes, edges in self.sizes]

    def expected(self) -> list[Ruled]:
        """The graphs in the form that a batch stores."""
        edges = {name for name, level in self.levels.items() if level == "edge"}
        return [by_destination(graph, edges) for graph in self.graphs()]

    def _graph(self, rng: np.random.Generator, nodes: int, edges: int) -> Ruled:
        index = _edges(rng, self.edges, nodes, edges)
        e = index.shape[1]
        rows = {"node": nodes, "edge": e, "graph": 1}
        y = rng.normal(size=(rows[self.label], 1))
        if self.missing:
            y[rng.random(y.shape) < 0.3] = np.nan
        values: dict[str, Any] = {
            "x": torch.from_numpy(rng.normal(size=(nodes, 3))),
            "edge_index": torch.from_numpy(index),
            "edge_attr": torch.from_numpy(rng.normal(size=(e, 2))),
            "edge_weight": torch.from_numpy(rng.random(e) + 0.1),
            "y": torch.from_numpy(y),
        }
        for number, more in enumerate(self.more):
            values[f"f{number}"] = _values(rng, more, rows[more.level] * more.rows)
        if self.rules in ("triplets", "both"):
            t = int(rng.integers(0, 2 * e + 1)) if e else 0
            values["triplets"] = torch.from_numpy(rng.integers(0, max(1, e), (2, t)))
            values["triplet_angle"] = torch.from_numpy(rng.normal(size=t))
        if self.rules in ("clusters", "both"):
            k = int(rng.integers(1, nodes + 1)) if nodes else 0
            values["num_clusters"] = k
            to = rng.integers(0, max(1, k), nodes)
            values["cluster_index"] = torch.from_numpy(np.stack([np.arange(nodes), to]))
        return Ruled(**values, num_nodes=nodes)


class Ruled(Data):
    """Data with indices of edges, and of clusters, for which no field has rows."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "triplets":
            return self.num_edges
        if key == "cluster_index":
            return torch.tensor([[self.num_nodes], [self.num_clusters]])
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 1 if key == "triplets" else super().__cat_dim__(key, value, *args, **kwargs)


def _edges(rng: np.random.Generator, kind: str, nodes: int, edges: int) -> np.ndarray:
    if not nodes or kind == "none":
        return np.empty((2, 0), np.int64)
    if kind == "loops":
        return np.repeat(rng.integers(0, nodes, (1, edges)), 2, axis=0)
    if kind == "star":
        return np.stack([rng.integers(0, nodes, edges), np.zeros(edges, np.int64)])
    found = rng.integers(0, nodes, (2, edges))
    if kind == "duplicates" and edges:
        found = found[:, rng.integers(0, min(2, edges), edges)]
    if kind == "both ways":
        found = np.concatenate([found, found[::-1]], axis=1)
    return found


def _values(rng: np.random.Generator, more: More, rows: int) -> Tensor:
    shape = (rows, *more.shape)
    if more.dtype in FLOATS:
        values = rng.normal(size=shape)
        if more.odd:
            mask = rng.random(shape) < 0.3
            odd = np.array([np.nan, np.inf, -np.inf, -0.0])
            values[mask] = rng.choice(odd, shape)[mask]
        array = values.astype(more.dtype)
    elif more.dtype == "bool":
        array = rng.random(shape) < 0.5
    else:
        info = np.iinfo(more.dtype)
        low, high = (info.min, info.max) if more.odd else (max(info.min, -2), 9)
        array = rng.integers(low, high, shape, dtype=more.dtype, endpoint=True)
    tensor = torch.from_numpy(np.asarray(array))
    if more.strided:
        wide = torch.stack([tensor, tensor.clone()], dim=-1)
        return wide[..., 0]
    return tensor


# ---------------------------------------------------------------------- strategies

SIZES = st.tuples(st.sampled_from((0, 1, 1, 2, 3, 5, 8, 13)), st.integers(0, 12))
SHAPES = st.sampled_from(((), (1,), (2,), (5,), (0,), (2, 3)))


@st.composite
def more_fields(draw: st.DrawFn) -> tuple[More, ...]:
    made = []
    for _ in range(draw(st.integers(0, 3))):
        level = draw(st.sampled_from(LEVELS))
        made.append(
            More(
                level,
                draw(st.sampled_from(FLOATS + WHOLE)),
                draw(SHAPES),
                draw(st.integers(1, 3)) if level == "graph" else 1,
                draw(st.booleans()),
                draw(st.booleans()),
            )
        )
    return tuple(made)


@st.composite
def graph_sets(draw: st.DrawFn, empty: bool = True, most: int = 9) -> GraphSet:
    """Data sets; ``empty=False`` leaves out empty graphs, on which PyG's own layers would fail."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=most))
    if not empty:
        sizes = [(max(1, nodes), edges) for nodes, edges in sizes]
    return GraphSet(
        tuple(sizes),
        draw(st.sampled_from(EDGES)),
        draw(st.integers(0, 2**32 - 1)),
        draw(more_fields()),
        draw(st.sampled_from(("none", "none", "triplets", "clusters", "both"))),
        draw(st.sampled_from(("graph", "graph", "node", "edge"))),
        draw(st.booleans()),
    )
