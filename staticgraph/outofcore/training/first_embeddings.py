"""Embeddings of a training run: opened where they stand, made at random where they do not.

A folder says how what it holds was trained, and over which partitioned graph: row i is the
embedding of the node that this graph numbers i, and of no other. Going on with another
configuration would be neither run, with another numbering nobody's embeddings: both are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.disk.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.training.link_epoch import to_bytes
from staticgraph.outofcore.training.link_step import LinkConfig


def open_for(
    folder: Path,
    graph: PartitionedGraph,
    config: LinkConfig,
    more: str,
    extras: Mapping[str, NDArray[Any]],
) -> EmbeddingFile:
    """The embeddings of a run.

    Args:
        folder: where they are, or will be.
        graph: gives the partitions.
        config: gives dimension, spread and seed.
        more: what else must be the same to go on.
        extras: committed with the first values.

    Raises:
        ValueError: the folder holds embeddings of another partitioning, or trained otherwise.
    """
    text = f"{config} {graph.num_nodes} {graph.num_edges}" + (f" {more}" if more else "")
    identity = np.frombuffer(text.encode(), np.uint8)
    digest = np.frombuffer(graph.digest.encode(), np.uint8)
    try:
        file = EmbeddingFile(folder, cached=graph.cached)
    except FileNotFoundError:
        shape = (graph.partition_size, config.dimension)

        def initial(partition: int) -> FloatArray:
            """``[rows, D]`` float32, the same for a seed and partition in any order."""
            rng = np.random.default_rng([config.seed, 0, partition])
            return config.spread * rng.standard_normal(shape, np.float32)

        return EmbeddingFile.create(
            folder, graph.num_partitions, graph.partition_size, config.dimension, initial,
            {"identity": identity, "partition": digest, "history": to_bytes(()), **extras},
            cached=graph.cached,
        )  # fmt: skip
    found = file.extras.get("partition", np.empty(0, np.uint8)).tobytes().decode()
    if found != graph.digest:
        file.close()
        raise ValueError(
            f"{folder} holds embeddings of the partitioned graph {found or '(of an older version)'}"
            f"; {graph.folder} is {graph.digest}, whose nodes have other numbers: partition with "
            "the same seed over the same edges to go on, or choose another folder"
        )
    if not np.array_equal(file.extras["identity"], identity):
        file.close()
        raise ValueError(
            f"{folder} holds embeddings trained as {bytes(file.extras['identity']).decode()}; "
            f"this is {text}: go on with the same, or choose another folder"
        )
    return file
