"""Graphs to write in parts, and a comparison of two stores."""

from __future__ import annotations

import numpy as np
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.store.columns import IndexRule
from support.graphs import random_graph


def assert_same_files(actual: sg.GraphStore, expected: sg.GraphStore) -> None:
    """Asserts that every array equals in value, dtype and shape, and the schemas are equal."""
    ours, theirs = actual.arrays(), expected.arrays()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), name
        assert np.array_equal(ours[name], array, equal_nan=array.dtype.kind == "f"), name
    assert actual.schema == expected.schema


def graphs_of(count: int, seed: int = 0) -> list[Data]:
    rng = np.random.default_rng(seed)
    return [
        random_graph(rng, int(rng.integers(0, 7)), int(rng.integers(0, 9))) for _ in range(count)
    ]


LEVELS = dict.fromkeys(("x", "z"), "node") | dict.fromkeys(("edge_attr", "edge_weight"), "edge")
LEVELS |= dict.fromkeys(("y", "stress"), "graph")


def clean_store() -> sg.GraphStore:
    """Graphs of 3, 2 and 4 nodes with 3, 2 and 5 unsorted edges, and one index per node."""
    src = np.array([1, 2, 0, 1, 0, 3, 0, 1, 2, 0])
    dst = np.array([2, 0, 1, 0, 1, 0, 3, 2, 1, 2])
    fields = {
        "x": ("node", np.arange(9.0, dtype=np.float32)[:, None] + 0.5),
        "next": ("node", np.array([0, 1, 2, 1, 0, 3, 2, 1, 0])),
        "y": ("graph", np.zeros((3, 1), np.float32)),
        "w": ("edge", np.arange(10)),
    }
    rules = {"next": IndexRule(0, ("node",))}
    return sg.GraphStore.from_arrays(
        np.array([3, 2, 4]), np.array([3, 2, 5]), src, dst, fields, rules=rules, name="clean"
    ).with_splits(train=np.array([0, 2]))
