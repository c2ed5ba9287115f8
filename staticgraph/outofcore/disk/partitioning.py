"""Partitions a graph on disk, in bounded memory.

Nodes are renumbered at random (training nodes first, if given, and with ``near`` the nodes that
they reach most often next), so that partitions are alike whatever order the caller's numbers have;
a node's partition is its new number divided by ceil(N / p), rounded down. The folder contains the
edges by cell, the features in the new order, the caller's number of each node, and a manifest. The
only arrays with one entry per node are two of integers, and five more with ``near``. Source:
MariusGNN, EuroSys 2023, section 3.

Training nodes are few, so the nodes within reach of a model's hops often fit in the buffer. With
``near``, the partitions right after those of the training nodes hold their neighbourhoods: the
nodes that random walks from them visit most. Related: PaGraph (Lin et al., SoCC 2020), which caches
by degree, and GNNLab (Yang et al., EuroSys 2022), which caches by how often a node was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.files.folder import replacing
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.inputs import Edges, edge_chunks, feature_rows
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
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import sort_by_key
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option

Progress = Callable[[str, int], None]
# Reads the edges, front to back.
EdgeSource = Callable[[], Iterator[IntArray]]
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
    seed, chunk = whole("seed", seed, 0), whole("chunk", chunk, 1)
    rows = None if features is None else feature_rows(features, num_nodes)
    source = partial(edge_chunks, edges, num_nodes, chunk)
    row_bytes = 200 if rows is None else rows.shape[1] * rows.itemsize
    p = _partitions(num_partitions, num_nodes, row_bytes)
    size = math.ceil(num_nodes / p)
    listed = [] if training_nodes is None else training_nodes
    first = np.unique(positions_in(listed, num_nodes, "training_nodes", "node", BadGraph))
    if near < 0 or (near and not len(first)):
        raise BadGraph(
            f"near={how_many(near, 'hop')} from {how_many(len(first), 'training node')}: give "
            "training_nodes, and hops of 0 or more"
        )
    with replacing(folder, KIND, overwrite) as scratch:
        node_ids = _order(source, first, num_nodes, near, seed)
        small = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
        new_ids = np.empty(num_nodes, small)
        new_ids[node_ids] = np.arange(num_nodes, dtype=small)
        offsets, columns, num_relations = sort_edges(
            source, chunk, new_ids, size, scratch, progress or (lambda stage, done: None)
        )
        begins = offsets[:-1] * columns * small.itemsize
        sums = np.array(FileRecord.of(scratch / EDGES, begins.tolist()).crc32, np.uint32)
        files = {EDGES: FileRecord.of(scratch / EDGES, begins[::p].tolist())}
        for name, array in ((NODE_IDS, node_ids), (OFFSETS, offsets), (SUMS, sums)):
            np.save(scratch / name, array)
            files[name] = FileRecord.of(scratch / name)
        described = None
        if rows is not None:
            files[FEATURES] = _write_features(rows, node_ids, size, scratch / FEATURES)
            described = [rows.dtype.newbyteorder("=").name, rows.shape[1]]
        Manifest(
            num_nodes=num_nodes,
            num_edges=int(offsets[-1]),
            num_partitions=p,
            partition_size=size,
            num_relations=num_relations,
            columns=columns,
            index_dtype=small.name,
            features=described,
            training_partitions=[*range(math.ceil(len(first) / size))],
            seed=seed,
            near=near,
            files=files,
        ).save(scratch)
    return PartitionedGraph(folder)


def _partitions(asked: SupportsIndex | Literal["auto"], num_nodes: int, row_bytes: int) -> int:
    """Returns p; rejects it if partitions at the end would be empty.

    ``auto`` is partitions of one efficient read: a power of two, at most 1,024, none empty.
    """
    if asked == "auto":
        p = 1 << max(1, min(1024, num_nodes * row_bytes // EFFICIENT_READ_BYTES)).bit_length() - 1
        while filled_partitions(num_nodes, p) != p:
            p //= 2
        return p
    p = whole_option("num_partitions", asked, 1, BadGraph)
    if (filled := filled_partitions(num_nodes, p)) != p:
        raise BadGraph(
            f"num_partitions={p} does not divide {how_many(num_nodes, 'node')}: partitions of "
            f"{how_many(math.ceil(num_nodes / p), 'node')} fill only {filled} of them; choose "
            f"num_partitions={filled}, or fewer"
        )
    return p


def _order(source: EdgeSource, first: IntArray, num_nodes: int, near: int, seed: int) -> IntArray:
    """Returns the caller's number for each new number."""
    rng, others = np.random.default_rng(seed), np.ones(num_nodes, bool)
    others[first] = False
    first, rest = rng.permutation(first), rng.permutation(np.flatnonzero(others))
    if near:
        # In float32, so that ties keep their random order and are not decided by rounding.
        often = _visits(source, first, num_nodes, near).astype(np.float32)
        rest = rest[np.argsort(-often[rest], kind="stable")]
    return np.concatenate([first, rest])


def _visits(
    source: EdgeSource, training: IntArray, num_nodes: int, hops: int
) -> NDArray[np.float64]:
    """Returns ``[N]``: the expected visits to each node by one random walk from each training node.

    A walk moves from a node to the source of a uniformly chosen incoming edge, as sampling does.
    The edges are read ``hops + 1`` times.
    """
    degrees = np.zeros(num_nodes, np.int64)
    for rows in source():
        degrees += np.bincount(rows[1], minlength=num_nodes)
    here = np.zeros(num_nodes)
    here[training] = 1.0
    total = here.copy()
    for _ in range(hops):
        shares = np.zeros(num_nodes)
        here /= np.maximum(1, degrees)
        for rows in source():
            shares += np.bincount(rows[0], here[rows[1]], num_nodes)
        here = shares
        total += here
    return total


def _write_features(rows: NDArray[Any], ids: IntArray, size: int, path: Path) -> FileRecord:
    """Writes features in the new order; returns the file's record, with one block per partition."""
    begins = range(0, len(ids), size)
    with path.open("wb") as file:
        for low in begins:
            block = np.ascontiguousarray(rows[ids[low : low + size]], rows.dtype.newbyteorder("="))
            # Not tofile, whose error for a full disk only gives the number of items written.
            file.write(block.data)
    return FileRecord.of(path, [low * rows.shape[1] * rows.itemsize for low in begins])


def sort_edges(
    source: EdgeSource,
    chunk: int,
    new_ids: NDArray[np.integer],
    size: int,
    folder: Path,
    progress: Progress,
) -> tuple[IntArray, int, int]:
    """Writes the edges to ``edges.bin``, by (source partition, destination partition), in two
    passes.

    The first renumbers the nodes, counts the edges of the p*p cells and appends each edge to the
    spill file of its source partition. The counts determine where each cell goes, so the second
    reads each spill file in slices, sorts a slice by destination partition (stable, linear) and
    writes each run to its place. Within a cell, edges stay in their order. A slice is bounded, so
    that a hub with most of the edges needs no extra memory.

    Args:
        source: reads the edges, with the caller's node numbers.
        chunk: edges in memory at once, in a few copies.
        new_ids: ``[N]``; the new number of each node. Edges are written in its dtype.
        size: nodes per partition.
        folder: an empty folder.

    Returns:
        Where each cell begins, ``[p * p + 1]`` int64, in edges; the columns of a row; and the
        number of relations (0 without relations).
    """
    p, dtype = -(-len(new_ids) // size), new_ids.dtype
    columns, relations, done = 2, 0, 0
    counts = np.zeros(p * p, np.int64)
    for rows in source():
        if done and len(rows) != columns:
            raise BadGraph(
                f"edges up to {done} have {how_many(columns, 'row')}, later ones {len(rows)}: give "
                "all of them with relations, or none"
            )
        columns = len(rows)
        written = np.empty((rows.shape[1], columns), dtype)
        written[:, 0], written[:, -1] = new_ids[rows[0]], new_ids[rows[1]]
        if columns == 3:
            written[:, 1] = rows[2]
            relations = max(relations, int(rows[2].max(initial=-1)) + 1)
        partitions = written[:, 0] // size
        cells = partitions.astype(np.int64) * p + written[:, -1] // size
        counts += np.bincount(cells, minlength=p * p)
        for partition, run in _runs(written, partitions, p):
            with (folder / f"spill-{partition}").open("ab") as file:
                # Not tofile, whose error for a full disk only gives the number of items written.
                file.write(run.data)
        done += rows.shape[1]
        progress("count", done)
    offsets, done = np.concatenate([[0], np.cumsum(counts)]), 0
    # Where the next edge of each cell goes.
    positions = offsets[:-1].reshape(p, p).copy()
    row_bytes = columns * dtype.itemsize
    with (folder / EDGES).open("wb") as file:
        file.truncate(int(offsets[-1]) * row_bytes)
        for partition in np.flatnonzero(counts.reshape(p, p).any(axis=1)).tolist():
            spill = folder / f"spill-{partition}"
            with spill.open("rb") as spilled:
                while (flat := np.fromfile(spilled, dtype, chunk * columns)).size:
                    rows = flat.reshape(-1, columns)
                    for destination, run in _runs(rows, rows[:, -1] // size, p):
                        file.seek(int(positions[partition, destination]) * row_bytes)
                        file.write(run.data)
                        positions[partition, destination] += len(run)
                    done += len(rows)
                    progress("place", done)
            spill.unlink()
    return offsets, columns, relations


def _runs(
    rows: NDArray[Any], keys: NDArray[Any], num_keys: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields each key that occurs, ascending, and its rows in their order."""
    order, starts = sort_by_key(keys, num_keys)
    ordered = rows[order]
    for key in np.flatnonzero(np.diff(starts)).tolist():
        yield key, ordered[starts[key] : starts[key + 1]]
