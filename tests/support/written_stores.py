"""Graphs to write in parts, and a comparison of two stores."""

from __future__ import annotations

import numpy as np
from torch_geometric.data import Data

import staticgraph as sg
from support.graphs import random_graph


def assert_same_files(found: sg.GraphStore, expected: sg.GraphStore) -> None:
    """Asserts that every array equals in value, dtype and shape, and the schemas are equal."""
    ours, theirs = found.arrays(), expected.arrays()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), name
        assert np.array_equal(ours[name], array, equal_nan=array.dtype.kind == "f"), name
    assert found.schema == expected.schema


def graphs_of(count: int, seed: int = 0) -> list[Data]:
    rng = np.random.default_rng(seed)
    return [
        random_graph(rng, int(rng.integers(0, 7)), int(rng.integers(0, 9))) for _ in range(count)
    ]


LEVELS = dict.fromkeys(("x", "z"), "node") | dict.fromkeys(("edge_attr", "edge_weight"), "edge")
LEVELS |= dict.fromkeys(("y", "stress"), "graph")
