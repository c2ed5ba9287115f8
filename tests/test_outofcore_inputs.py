"""Inputs of any supported type are written to disk unchanged; anything else is refused."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from staticgraph.errors import BadGraph, UnknownDataset
from staticgraph.outofcore import InMemory, PartitionedGraph, SampledLoader, data, partition

N = 30
EDGES = np.random.default_rng(0).integers(0, N, (2, 90))
VALUES = np.random.default_rng(1).integers(0, 200, (N, 3))


def features_of(graph: PartitionedGraph) -> np.ndarray:
    """The features from a loader, in the order of the caller's node numbers."""
    loader = SampledLoader(graph, InMemory(), [2], 7)
    values = np.empty((N, 3))
    for batch in loader:
        values[batch.nodes] = batch.graph.x[: len(batch.nodes)].double().numpy()
    loader.close()
    return values


@pytest.mark.parametrize(
    "edges",
    [
        torch.from_numpy(EDGES), EDGES.tolist(), EDGES.astype(">i4"), EDGES.astype(np.uint64),
        lambda: iter([torch.from_numpy(EDGES)]),
    ],
)  # fmt: skip
def test_edges_in_another_dress_are_the_same_edges(tmp_path, edges):
    partition(edges, N, 3, tmp_path / "g")
    written = data.open_links(str(tmp_path / "g"), held_out=0.0).train
    assert sorted(written.T.tolist()) == sorted(EDGES.T.tolist())


@pytest.mark.parametrize(
    "features",
    [
        VALUES.astype(">f4"), VALUES.astype(">i8"), VALUES.astype(np.uint16),
        VALUES.astype(np.uint64), VALUES.astype(np.float16),
        VALUES.tolist(), np.asfortranarray(VALUES),
    ],
)  # fmt: skip
def test_features_in_another_dress_are_the_same_numbers(tmp_path, features):
    graph = partition(EDGES, N, 3, tmp_path / "g", features=features)
    np.testing.assert_array_equal(features_of(graph), VALUES)


def typed(relation: float) -> np.ndarray:
    return np.concatenate([EDGES, np.full((1, 90), relation)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edges": np.array([[0, 9], [1, 30]])}, "edge 1 joins 9 -> 30.*raise num_nodes"),
        ({"edges": np.array([[0, -1], [1, 1]])}, "edge 1 joins -1 -> 1"),
        ({"edges": EDGES.T}, r"edges has shape \(90, 2\) .* \[2, E\] or \[3, E\].* as edges\.T$"),
        ({"edges": np.zeros((2, 3))}, "dtype float64"),
        ({"edges": [[0, 1], [2]]}, "edges is not an array"),
        ({"edges": Data(edge_index=torch.from_numpy(EDGES))}, "edges is a Data.*edge_index"),
        ({"edges": HeteroData()}, "edges is a HeteroData.*edge_index"),
        ({"edges": typed(-4).astype(int)}, "edge 0 has relation -4"),
        ({"edges": typed(2**31 + 7).astype(int)}, "edge 0 has relation 2147483655.*np.unique"),
        ({"edges": typed(0.0)}, r"has shape \(3, 90\) and dtype float64"),
        (
            {"edges": lambda: iter([EDGES, typed(0).astype(int)])},
            "up to 90 have 2 rows, .*ones 3",
        ),
        ({"features": VALUES.astype(complex)}, "features has dtype complex128; give numbers"),
        ({"features": VALUES.astype(np.longdouble)}, "features has dtype float128; give numbers"),
        ({"features": VALUES.astype(str)}, "features has dtype <U21; give numbers"),
        ({"features": torch.zeros(N, 3, dtype=torch.bfloat16)}, "is not an array.*BFloat16"),
        ({"features": VALUES[1:]}, r"features has shape \(29, 3\); give \[30, F\]"),
        ({"num_partitions": 7}, "num_partitions=7 does not divide .* choose num_partitions=6"),
        ({"num_partitions": 0}, "at least 1"),
        ({"num_nodes": 0}, "num_nodes=0: give a whole number of at least 1"),
        ({"chunk": 0}, "chunk=0: give a whole number of at least 1"),
        ({"seed": -1}, "seed=-1: give a whole number of at least 0"),
        ({"training_nodes": [30]}, "there are 30$"),
        ({"near": 2}, "near=2 hops from 0 training nodes: give training_nodes"),
        ({"near": -1, "training_nodes": [1]}, "near=-1 hops from 1 training node"),
    ],
)
def test_what_cannot_be_partitioned_is_named_and_nothing_is_written(tmp_path, change, said):
    arguments = {"edges": EDGES, "num_nodes": N, "num_partitions": 3, **change}
    with pytest.raises(BadGraph, match=said):
        partition(folder=tmp_path / "g", **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("features", [None, np.ones((N, 4096), np.float32)])
def test_a_full_disk_is_said_as_such(tmp_path, monkeypatch, features):
    # A file of the partitioned graph is a device that is full at the first byte.
    name = "spill-0" if features is None else "features.bin"
    made = tmp_path.__class__.mkdir

    def with_full(path, *args, **kwargs):
        made(path, *args, **kwargs)
        (path / name).symlink_to("/dev/full")

    monkeypatch.setattr(type(tmp_path), "mkdir", with_full)
    with pytest.raises(OSError, match="No space left") as raised:
        partition(EDGES, N, 1, tmp_path / "g", features=features)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("again", [[3, 1], [1, 3]])
def test_an_undirected_edge_that_stands_twice_is_refused(tmp_path, again):
    edges = np.array([[0, 1], [1, 3], [4, 4], again]).T
    np.savez(tmp_path / "g.npz", edges=edges, num_nodes=5)
    for opened in (data.open_links, data.open_nodes):
        with pytest.raises(UnknownDataset, match=r"edge 3 joins . -> ., as edge 1.*edge once"):
            opened(str(tmp_path / "g.npz"))
