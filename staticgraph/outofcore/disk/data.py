"""Large graphs by name or path, as the commands accept them.

Files are ``.npz``. Triples have ``train``, ``valid`` and ``test`` as ``[3, T]`` head, relation,
tail with ``num_entities``; a graph has ``edges [2, E]`` (each undirected edge once) and
``num_nodes``, and for node classification ``label``, ``train``, ``val``, ``test`` and binary
features as rows of indices (``x_indptr``, ``x_indices``, ``x_shape``). ``train``, ``val`` and
``test`` are numbers of nodes, or masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.datasets.npz import read_npz
from staticgraph.errors import UnknownDataset
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.inputs import check_edges, check_form, class_labels
from staticgraph.outofcore.disk.manifest import KIND
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option

NAMES = {
    "fb15k-237": "FB15k-237.npz",
    "cora": "cora.npz",
    "citeseer": "citeseer.npz",
    "cornell5": "fb100-Cornell5.npz",
}
PLACES = (Path("examples/data"), Path(__file__).parents[3] / "examples" / "data")


@dataclass(frozen=True, slots=True)
class LinkData:
    """Edges or triples in the form that :func:`partition` takes: source, destination, relation.

    ``undirected`` means that each edge is listed once and holds in both directions.
    """

    name: str
    num_nodes: int
    train: IntArray
    valid: IntArray
    test: IntArray
    undirected: bool = False

    @property
    def known(self) -> IntArray:
        """``[3, K]`` (``[2, K]`` without relations): all true edges, which filtered ranks exclude.

        Those of an undirected graph are included in both directions.
        """
        once = np.concatenate([self.train, self.valid, self.test], axis=1)
        if not self.undirected:
            return once
        return np.concatenate([once, once[[1, 0, *range(2, len(once))]]], axis=1)


@dataclass(frozen=True, slots=True)
class NodeData:
    """A graph with labelled nodes; edges in both directions."""

    name: str
    edges: IntArray
    features: NDArray[np.float32]
    labels: IntArray
    train: IntArray
    valid: IntArray
    test: IntArray


def find(spec: str) -> Path:
    """Returns the file for a name or a path, or the folder of a partitioned graph.

    Raises:
        UnknownDataset: if it is neither of these nor a known name whose file is present.
    """
    if (path := Path(spec)).is_file() or KIND.is_that_of(path):
        return path
    name = NAMES.get(spec.lower())
    for place in PLACES:
        if name is not None and (place / name).is_file():
            return place / name
    raise UnknownDataset(
        f"{spec!r} is neither a file nor a folder of staticgraph partition"
        + (f", and {name} is not in examples/data" if name else "")
        + f"; give the path of an .npz, or one of {', '.join(NAMES)}"
    )


def has_labels(spec: str) -> bool:
    """Whether a file has labels of nodes.

    Raises:
        UnknownDataset: if there is no such data.
    """
    path = find(spec)
    return path.is_file() and "label" in read_npz(path)


def open_links(spec: str, *, held_out: float = 0.05, seed: int = 0) -> LinkData:
    """Opens triples, or a graph, of which ``held_out`` of the edges go to each of valid and test.

    The edges of a partitioned graph are taken as directed, with the caller's own node numbers.

    Raises:
        UnknownDataset: if the file has another form.
        ValueError: if ``held_out`` is not from 0 to below one half, which leaves nothing to train.
    """
    path = find(spec)
    if not 0.0 <= held_out < 0.5:
        raise ValueError(f"held_out={held_out} twice leaves no edges: give a share from 0 to 0.5")
    if path.is_dir():
        graph = PartitionedGraph(path)
        edges = graph.read_edges().T.astype(np.int64)
        edges[[0, -1]] = graph.node_ids[edges[[0, -1]]]
        if graph.num_relations:  # the middle row; they come last in what is partitioned
            edges = edges[[0, 2, 1]]
        graph.close()
        return LinkData(path.name, graph.num_nodes, *_split(edges, held_out, seed))
    file = read_npz(path)
    if "num_entities" in file:
        _require(path, file, "train", "valid", "test")
        n = whole_option(f"{path}: num_entities", file["num_entities"], 1, UnknownDataset)
        parts = [_ends(path, file, k, n, 3)[[0, 2, 1]] for k in ("train", "valid", "test")]
        return LinkData(path.stem, n, parts[0], parts[1], parts[2])
    n, edges = _undirected(path, file)
    return LinkData(path.stem, n, *_split(edges, held_out, seed), undirected=True)


def _split(edges: IntArray, held_out: float, seed: int) -> tuple[IntArray, IntArray, IntArray]:
    """Returns the edges to train on, and those held out for valid and test."""
    order = np.random.default_rng(seed).permutation(edges.shape[1])
    cut = round(held_out * edges.shape[1])
    return edges[:, order[2 * cut :]], edges[:, order[cut : 2 * cut]], edges[:, order[:cut]]


def open_nodes(spec: str) -> NodeData:
    """Opens a graph with labelled nodes.

    Raises:
        UnknownDataset: if the file has another form.
        ValueError: if its labels are no classes.
    """
    path = find(spec)
    if path.is_dir():
        raise UnknownDataset(
            f"{path} holds edges and no labels: give the .npz of the graph, which train-large "
            "partitions itself, or --task link"
        )
    file = read_npz(path)
    n, once = _undirected(path, file)
    # A self-loop is the same in both directions.
    edges = np.concatenate([once, once[::-1, once[0] != once[1]]], axis=1)
    _require(path, file, "label", "train", "val", "test", "x_indptr", "x_indices", "x_shape")
    splits = [
        positions_in(file[k], n, f"{path}: {k}", "node", UnknownDataset)
        for k in ("train", "val", "test")
    ]
    labels = class_labels(file["label"], n)
    return NodeData(path.stem, edges, _dense(path, file, n), labels, *splits)


def _dense(path: Path, file: Mapping[str, NDArray[Any]], nodes: int) -> NDArray[np.float32]:
    """Returns dense binary features, each row divided by its sum, as usual for citation graphs."""
    width = int(file["x_shape"][-1])
    indices = positions_in(
        file["x_indices"], width, f"{path}: x_indices", "feature", UnknownDataset
    )
    counts = np.diff(whole_numbers(file["x_indptr"], f"{path}: x_indptr", UnknownDataset))
    if counts.shape != (nodes,) or counts.min() < 0 or counts.sum() != len(indices):
        raise UnknownDataset(
            f"{path}: x_indptr does not divide {how_many(len(indices), 'feature')} among "
            f"{how_many(nodes, 'node')}"
        )
    rows = np.repeat(np.arange(nodes), counts)
    features = np.zeros((nodes, width), np.float32)
    features[rows, indices] = 1.0 / np.maximum(1, counts)[rows]
    return features


def _ends(
    path: Path, file: Mapping[str, NDArray[Any]], name: str, nodes: int, rows: int
) -> IntArray:
    """Returns ``[rows, E]`` int64, after checking that the first and last rows are nodes."""
    array = file[name]
    check_form(array, (rows,), f"{path}: {name}", UnknownDataset)
    edges = array.astype(np.int64)
    check_edges(edges[[0, -1]], nodes, f"{path}: {name}: ", error=UnknownDataset)
    return edges


def _undirected(path: Path, file: Mapping[str, NDArray[Any]]) -> tuple[int, IntArray]:
    """Returns the number of nodes, and ``[2, E]`` undirected edges, of which none is listed twice.

    If one were held out, the other would reveal it; and both directions of both would be four
    edges.
    """
    _require(path, file, "edges", "num_nodes")
    nodes = whole_option(f"{path}: num_nodes", file["num_nodes"], 1, UnknownDataset)
    edges = _ends(path, file, "edges", nodes, 2)
    key = edges.min(axis=0) * nodes + edges.max(axis=0)
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    again = first[place] != np.arange(len(key))
    if again.any():
        edge = int(again.argmax())
        raise UnknownDataset(
            f"{path}: edge {edge} joins {edges[0, edge]} -> {edges[1, edge]}, as edge "
            f"{first[place[edge]]} does one way or the other: list each undirected edge once, "
            "for example with np.unique(np.sort(edges, axis=0), axis=1)"
        )
    return nodes, edges


def _require(path: Path, file: Mapping[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in file]
    if missing:
        raise UnknownDataset(
            f"{path} has no {', '.join(missing)}; it holds {', '.join([*file][:9]) or 'nothing'}. "
            "See examples/data/README.md for the forms"
        )
