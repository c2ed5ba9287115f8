"""Reads compact ``.npz`` layouts of molecules and TU sets as a store, without a loop over graphs.

Molecules keep each bond once: ``num_nodes[n]``, ``num_bonds[n]``, ``atom_feat[9, sum n]``,
``bond_feat[3, sum b]``, ``bonds[2, sum b]`` (numbered within the molecule), ``label[n]`` or
``label[n, T]``, and optionally ``split[n]`` of 0, 1, 2 for training, validation and test. TU sets
keep each undirected edge once: ``num_nodes[n]``, ``num_edges_undirected[n]``, ``edges[2, sum]``,
``label[n]``, and optionally ``node_tag[sum n]``.

Bond ``i`` becomes the edges ``2i`` (a, b) and ``2i + 1`` (b, a), as in OGB.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from staticgraph.errors import BadGraph, UnknownDataset
from staticgraph.files.numpy_file import UNREADABLE, why_unreadable
from staticgraph.schema import Level
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.columns import Array
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many

MOLECULES = ("num_nodes", "num_bonds", "atom_feat", "bond_feat", "bonds", "label")
TU = ("num_nodes", "num_edges_undirected", "edges", "label")
SPLITS = ("train", "val", "test")
# With more kinds than this (DD has 89), the kind's number is kept instead of a one-hot row, which
# would be wider than a model's hidden layer and, for 300,000 kinds, would not fit in memory.
MOST_ONE_HOT = 256


def open_npz(path: Path) -> GraphStore:
    """Reads a file of either layout, with ``x``, ``edge_attr`` and ``y`` as in PyG's own data sets.

    Molecules: ``x`` int64 ``[n, 9]``, ``edge_attr`` int64 ``[e, 3]``, ``y`` float32 ``[1, T]``. TU:
    ``x`` float32, the one-hot node label (or ones), or int64 ``[n, 1]`` if there are more than
    :data:`MOST_ONE_HOT` labels; ``y`` int64 ``[1]``, classes from 0.

    Raises:
        UnknownDataset: if the file has neither layout; the message lists what it holds.
        BadGraph: if an array does not have one entry per graph, or has a fraction instead of an
            integer.
    """
    arrays = read_npz(path)
    if set(MOLECULES) <= set(arrays):
        return _molecules(arrays, path.stem)
    if set(TU) <= set(arrays):
        return _tu(arrays, path.stem)
    raise UnknownDataset(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; expected molecules "
        f"({', '.join(MOLECULES)}) or a TU set ({', '.join(TU)})"
        + ("; one large graph is for staticgraph train-large" if _is_one_graph(arrays) else "")
    )


def read_npz(path: Path) -> dict[str, Array]:
    """Reads all arrays of an ``.npz`` file, by name.

    Raises:
        OSError: if it is not accessible.
        UnknownDataset: if the file is not an ``.npz`` file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (*UNREADABLE, OSError, TypeError, AttributeError) as error:  # the latter two for an .npy
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UnknownDataset(
            f"{path} is not an .npz of plain arrays: {why_unreadable(path)}"
        ) from error


def _is_one_graph(arrays: dict[str, Array]) -> bool:
    """Returns whether these are the arrays of one large graph, as for ``train-large``."""
    nodes = arrays.get("num_nodes", arrays.get("num_entities"))
    return nodes is not None and nodes.ndim == 0


def _molecules(arrays: dict[str, Array], name: str) -> GraphStore:
    graphs = len(arrays["num_nodes"])
    _check_length(name, "label", arrays["label"], graphs)
    src, dst = both_directions(arrays["bonds"])
    label = as_float32(arrays["label"], name).reshape(graphs, -1)
    bonds = whole_numbers(arrays["bond_feat"].T, "bond_feat", BadGraph)
    fields: dict[str, tuple[Level, Array]] = {
        "x": ("node", whole_numbers(arrays["atom_feat"].T, "atom_feat", BadGraph)),
        "edge_attr": ("edge", np.repeat(bonds, 2, axis=0)),
        "y": ("graph", label),
    }
    store = GraphStore.from_arrays(
        arrays["num_nodes"],
        2 * whole_numbers(arrays["num_bonds"], f"num_bonds of {name}", BadGraph),
        src,
        dst,
        fields,
        splits=_splits(arrays, name),
        name=name,
    )
    return replace(store, schema=replace(store.schema, molecules=True))


def _tu(arrays: dict[str, Array], name: str) -> GraphStore:
    src, dst = both_directions(arrays["edges"])
    _check_length(name, "label", arrays["label"], len(arrays["num_nodes"]))
    nodes = int(whole_numbers(arrays["num_nodes"], f"num_nodes of {name}", BadGraph).sum())
    kinds, tag = np.unique(arrays.get("node_tag", np.zeros(nodes)), return_inverse=True)
    fields: dict[str, tuple[Level, Array]] = {
        "x": ("node", categories(tag.reshape(-1), len(kinds))),
        "y": ("graph", np.unique(arrays["label"], return_inverse=True)[1].astype(np.int64)),
    }
    return GraphStore.from_arrays(
        arrays["num_nodes"],
        2 * whole_numbers(arrays["num_edges_undirected"], f"edges of {name}", BadGraph),
        src,
        dst,
        fields,
        splits=_splits(arrays, name),
        name=name,
    )


def categories(tag: Array, kinds: int) -> Array:
    """Returns the features of nodes with a categorical label.

    These are float32 one-hot ``[n, kinds]``, as in PyG, or int64 ``[n, 1]`` for an embedding if
    there are more than :data:`MOST_ONE_HOT` kinds.
    """
    if kinds > MOST_ONE_HOT:
        return tag.astype(np.int64).reshape(-1, 1)
    return (tag[:, None] == np.arange(kinds)).astype(np.float32)


def as_float32(label: Array, name: str) -> Array:
    """Converts labels to float32, keeping NaN and infinities.

    Raises:
        BadGraph: if a finite label is out of float32's range.
    """
    with np.errstate(over="ignore"):
        narrow = label.astype(np.float32)
    lost = np.isinf(narrow) & np.isfinite(label)
    if lost.any():
        raise BadGraph(
            f"{name}: graph {np.argwhere(lost)[0][0]} has the label {label[lost][0]}, which "
            "float32 does not hold; scale the labels"
        )
    return narrow


def both_directions(pairs: Array) -> tuple[IntArray, IntArray]:
    """Returns sources and destinations ``[2m]`` of undirected pairs ``[2, m]``: a to b, b to a."""
    pairs = whole_numbers(pairs, "ends of bonds or edges", BadGraph)
    return pairs.T.reshape(-1), pairs[::-1].T.reshape(-1)


def _check_length(name: str, key: str, values: Array, graphs: int) -> None:
    """Rejects an array that does not have one entry per graph."""
    length = len(values) if values.ndim else 1
    if length != graphs:
        raise BadGraph(
            f"{name}: {key!r} has {how_many(length, 'entry')} for {how_many(graphs, 'graph')} "
            "(num_nodes); one per graph is needed: write the file again from one list of graphs"
        )


def _splits(arrays: dict[str, Array], name: str) -> dict[str, IntArray]:
    """Returns the graphs of each split; every graph is in exactly one."""
    if "split" not in arrays:
        return {}
    codes = arrays["split"]
    _check_length(name, "split", codes, len(arrays["num_nodes"]))
    odd = np.flatnonzero(~np.isin(codes, range(len(SPLITS))))
    if len(odd):
        raise BadGraph(
            f"{name}: 'split' of graph {odd[0]} is {codes[odd[0]]}; 0, 1 and 2 mean "
            f"{', '.join(SPLITS)}, and every graph is in one of them"
        )
    return {split: np.flatnonzero(codes == code) for code, split in enumerate(SPLITS)}
