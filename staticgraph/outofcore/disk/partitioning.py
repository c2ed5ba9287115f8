"""Partitions a graph on disk, in bounded memory.

Nodes are renumbered at random (training nodes first, if given, and with ``near`` the nodes that
they reach most often next), so that partitions are alike whatever order the caller's numbers have;
a node's partition is its new number divided by ceil(N / p), rounded down. The folder contains the
edges by cell, the features in the new order, the caller's number of each node, and a manifest. The
only arrays with one entry per node are two of integers, and five more with ``near``. Source:
MariusGNN, EuroSys 2023, section 3.

Training nodes are few, so the nodes within reach of a model's hops often fit in the buffer. With
``near``, the other nodes are numbered by how often random walks from the training nodes visit them,
so that the partitions right after those of the training nodes hold their neighbourhoods. Related:
PaGraph (Lin et al., SoCC 2020), which caches by degree, and GNNLab (Yang et al., EuroSys 2022),
which caches by how often a node was sampled.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.files.folder import replacing
from staticgraph.outofcore.disk.array_files import feature_rows
from staticgraph.outofcore.disk.external_sort import Edges, EdgeSource, Progress, sort_edges
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.manifest import (
    EDGES,
    FEATURES,
    KIND,
    NODE_IDS,
    OFFSETS,
    SUMS,
    FileRecord,
    Manifest,
)
from staticgraph.outofcore.policies.tuning import EFFICIENT_READ_BYTES, filled_partitions
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option

# Edges in memory at once: four copies of 4 Mi rows of three int64 take 400 MiB.
CHUNK = 1 << 22


def partition(
    edges: Edges,
    num_nodes: SupportsIndex,
    num_partitions: SupportsIndex | Literal["auto"] = "auto",
    folder: str | Path = "graph",
    *,
    features: ArrayLike | str | Path | None = None,
    training_nodes: ArrayLike | None = None,
    near: SupportsIndex = 0,
    seed: SupportsIndex = 0,
    chunk: SupportsIndex = CHUNK,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> PartitionedGraph:
    """Writes a graph as partitions and opens it.

    Args:
        edges: ``[2, E]`` or ``[3, E]`` integers (source, destination, relation): a NumPy array,
            tensor or lists, the path of an ``.npy``, or a function that returns an iterator over
            such arrays.
        num_nodes: N.
        num_partitions: p; ``auto`` chooses p so that the features of a partition take about one
            efficient read.
        folder: the target folder; created if missing.
        features: ``[N, F]`` numbers, as an array, memory-mapped or not, a tensor, or the path of an
            ``.npy``.
        training_nodes: nodes, or a mask, to number first, so that they fill the first partitions.
        near: order the other nodes by how often random walks of this many hops from the training
            nodes reach them, for ``NodeCache(near=)``; use the model's number of layers. 0 orders
            them at random. The edges are read ``near + 1`` more times, and a function must return
            the same ones each time.
        seed: the seed of the renumbering.
        chunk: edges in memory at once.
        progress: called with a stage and the number of edges processed in it.
        overwrite: replace an existing partitioned graph.

    Raises:
        BadGraph: if an edge is outside the graph, features have another length or are not numbers,
            or partitions would be empty; the message names the item and the remedy.
        FileExistsError: if the folder holds a partitioned graph and ``overwrite`` is false, or
            anything else; the message names it, and nothing is changed.
    """
    whole = partial(whole_option, error=BadGraph)
    num_nodes, near = whole("num_nodes", num_nodes, 1), whole("near", near)
    seed, chunk = whole("seed", seed), whole("chunk", chunk, 1)
    rows = None if features is None else feature_rows(features, num_nodes)
    source = EdgeSource(edges, num_nodes, chunk)
    p = (
        _auto(num_nodes, 200 if rows is None else rows.shape[1] * rows.itemsize)
        if num_partitions == "auto"
        else whole("num_partitions", num_partitions, 1)
    )
    size = _partition_size(num_nodes, p)
    listed = [] if training_nodes is None else training_nodes
    first = np.unique(positions_in(listed, num_nodes, "training_nodes", "node", BadGraph))
    if near < 0 or (near and not len(first)):
        raise BadGraph(
            f"near={how_many(near, 'hop')} from {how_many(len(first), 'training node')}: give "
            "training_nodes, and hops of 0 or more"
        )
    with replacing(folder, KIND, overwrite) as scratch:
        node_ids = _order(num_nodes, first, seed)
        if near:
            # In float32, so that ties keep their random order and are not decided by rounding.
            often = visits(source, first, num_nodes, near).astype(np.float32)
            rest = node_ids[len(first) :]
            node_ids[len(first) :] = rest[np.argsort(-often[rest], kind="stable")]
        small = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
        new_ids = np.empty(num_nodes, small)
        new_ids[node_ids] = np.arange(num_nodes, dtype=small)
        offsets, columns, num_relations = sort_edges(
            source, new_ids, size, scratch, progress or (lambda stage, done: None)
        )
        files = _write_tables(scratch, node_ids, offsets, p, columns * small.itemsize)
        described = None
        if rows is not None:
            files[FEATURES] = _write_features(rows, node_ids, size, scratch / FEATURES)
            described = (rows.dtype.newbyteorder("=").name, rows.shape[1])
        Manifest(
            num_nodes=num_nodes,
            num_edges=int(offsets[-1]),
            num_partitions=p,
            partition_size=size,
            num_relations=num_relations,
            columns=columns,
            index_dtype=small.name,
            features=described,
            training_partitions=tuple(range(math.ceil(len(first) / size))),
            seed=seed,
            near=near,
            files=files,
        ).save(scratch)
    return PartitionedGraph(folder)


def _partition_size(num_nodes: int, p: int) -> int:
    """Returns ceil(N / p); rejects p if partitions at the end would be empty."""
    size = math.ceil(num_nodes / p)
    if (filled := filled_partitions(num_nodes, p)) != p:
        raise BadGraph(
            f"num_partitions={p} does not divide {how_many(num_nodes, 'node')}: partitions of "
            f"{how_many(size, 'node')} fill only {filled} of them; choose num_partitions={filled}, "
            "or fewer"
        )
    return size


def _auto(num_nodes: int, row_bytes: int) -> int:
    """Returns p for partitions of one efficient read: a power of two, at most 1,024, none empty."""
    partitions = max(1, min(1024, num_nodes * row_bytes // EFFICIENT_READ_BYTES))
    p = 1 << (partitions.bit_length() - 1)
    while filled_partitions(num_nodes, p) != p:
        p //= 2
    return p


def _order(num_nodes: int, first: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Returns the caller's number for each new number."""
    rng = np.random.default_rng(seed)
    rest = np.ones(num_nodes, dtype=bool)
    rest[first] = False
    return np.concatenate([rng.permutation(first), rng.permutation(np.flatnonzero(rest))])


def visits(
    source: EdgeSource, training: NDArray[np.int64], num_nodes: int, hops: int
) -> NDArray[np.float64]:
    """Returns ``[N]``: the expected visits to each node by one random walk from each training node.

    A walk moves from a node to the source of a uniformly chosen incoming edge, as sampling does.
    The edges are read ``hops + 1`` times.
    """
    degrees = np.zeros(num_nodes, np.int64)
    for rows in source:
        degrees += np.bincount(rows[1], minlength=num_nodes)
    here = np.zeros(num_nodes)
    here[training] = 1.0
    total = here.copy()
    for _ in range(hops):
        shares = np.zeros(num_nodes)
        here /= np.maximum(1, degrees)
        for rows in source:
            shares += np.bincount(rows[0], here[rows[1]], num_nodes)
        here = shares
        total += here
    return total


def _write_tables(
    folder: Path, node_ids: NDArray[np.int64], offsets: NDArray[np.int64], p: int, row_bytes: int
) -> dict[str, FileRecord]:
    """Writes node numbers ``[N]``, cell offsets ``[p * p + 1]`` and checksums of cells next to the
    sorted edges."""
    begins = (offsets[:-1] * row_bytes).tolist()
    sums = np.array(FileRecord.of(folder / EDGES, begins).crc32, np.uint32)
    files = {EDGES: FileRecord.of(folder / EDGES, begins[::p])}
    for name, array in ((NODE_IDS, node_ids), (OFFSETS, offsets), (SUMS, sums)):
        np.save(folder / name, array)
        files[name] = FileRecord.of(folder / name)
    return files


def _write_features(
    rows: NDArray[Any], ids: NDArray[np.int64], size: int, path: Path
) -> FileRecord:
    """Writes features in the new order; returns the file's record, with one block per partition."""
    begins = range(0, len(ids), size)
    with path.open("wb") as file:
        for low in begins:
            block = np.ascontiguousarray(rows[ids[low : low + size]], rows.dtype.newbyteorder("="))
            # Not tofile, whose error for a full disk only gives the number of items written.
            file.write(block.data)
    return FileRecord.of(path, [low * rows.shape[1] * rows.itemsize for low in begins])
