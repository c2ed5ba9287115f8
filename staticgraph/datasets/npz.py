"""Compact ``.npz`` layouts of molecules and TU sets -> a store, without a loop over graphs.

Molecules keep each bond once: ``num_nodes[n]``, ``num_bonds[n]``, ``atom_feat[9, sum n]``,
``bond_feat[3, sum b]``, ``bonds[2, sum b]`` (numbered within the molecule), ``label[n]`` or
``label[n, T]``, and perhaps ``split[n]`` of 0, 1, 2 for training, validation and test. TU sets keep
each undirected edge once: ``num_nodes[n]``, ``num_edges_undirected[n]``, ``edges[2, sum]``,
``label[n]``, and perhaps ``node_tag[sum n]``.

Bond ``i`` becomes the edges ``2i`` (a, b) and ``2i + 1`` (b, a), as in OGB.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from staticgraph.errors import UnknownDataset
from staticgraph.schema import Level
from staticgraph.sizes import IntArray
from staticgraph.store import Array, GraphStore

MOLECULES = ("num_nodes", "num_bonds", "atom_feat", "bond_feat", "bonds", "label")
TU = ("num_nodes", "num_edges_undirected", "edges", "label")
SPLITS = ("train", "val", "test")


def open_npz(path: Path) -> GraphStore:
    """Reads a file of either layout; ``x``, ``edge_attr`` and ``y`` as PyG's own classes give them.

    Molecules: ``x`` int64 ``[n, 9]``, ``edge_attr`` int64 ``[e, 3]``, ``y`` float32 ``[1, T]``.
    TU: ``x`` float32, the one-hot node label (or ones), ``y`` int64 ``[1]``, classes from 0.

    Raises:
        UnknownDataset: the file is of neither layout; the message lists what it holds.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UnknownDataset(f"{path} is not an .npz of plain arrays: {error}") from None
    if set(MOLECULES) <= set(arrays):
        return _molecules(arrays, path.stem)
    if set(TU) <= set(arrays):
        return _tu(arrays, path.stem)
    raise UnknownDataset(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; expected molecules "
        f"({', '.join(MOLECULES)}) or a TU set ({', '.join(TU)})"
    )


def _molecules(arrays: dict[str, Array], name: str) -> GraphStore:
    src, dst = both_directions(arrays["bonds"])
    label = arrays["label"].astype(np.float32).reshape(len(arrays["num_nodes"]), -1)
    fields: dict[str, tuple[Level, Array]] = {
        "x": ("node", arrays["atom_feat"].T.astype(np.int64)),
        "edge_attr": ("edge", np.repeat(arrays["bond_feat"].T.astype(np.int64), 2, axis=0)),
        "y": ("graph", label),
    }
    return GraphStore.from_arrays(
        arrays["num_nodes"],
        2 * arrays["num_bonds"].astype(np.int64),
        src,
        dst,
        fields,
        splits=_splits(arrays),
        name=name,
    )


def _tu(arrays: dict[str, Array], name: str) -> GraphStore:
    src, dst = both_directions(arrays["edges"])
    tags = arrays.get("node_tag", np.zeros(int(arrays["num_nodes"].sum()), np.int64))
    kinds, tag = np.unique(tags, return_inverse=True)
    fields: dict[str, tuple[Level, Array]] = {
        "x": ("node", np.eye(len(kinds), dtype=np.float32)[tag]),
        "y": ("graph", np.unique(arrays["label"], return_inverse=True)[1].astype(np.int64)),
    }
    return GraphStore.from_arrays(
        arrays["num_nodes"],
        2 * arrays["num_edges_undirected"].astype(np.int64),
        src,
        dst,
        fields,
        splits=_splits(arrays),
        name=name,
    )


def both_directions(pairs: Array) -> tuple[IntArray, IntArray]:
    """Sources and destinations ``[2m]`` of ``m`` undirected pairs ``[2, m]``: a to b, b to a."""
    pairs = pairs.astype(np.int64)
    return pairs.T.reshape(-1), pairs[::-1].T.reshape(-1)


def _splits(arrays: dict[str, Array]) -> dict[str, IntArray]:
    if "split" not in arrays:
        return {}
    return {name: np.flatnonzero(arrays["split"] == code) for code, name in enumerate(SPLITS)}
