"""The embeddings of a run of link prediction, opened to train on or created.

A folder records how its embeddings were trained, and over which partitioned graph: row i is the
embedding of node i in the numbering of this graph only. Training further with another configuration
would mix two runs, and with another numbering would assign embeddings to wrong nodes: both are
rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.disk.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.training.link_step import LinkConfig


def open_embeddings(
    folder: Path,
    graph: PartitionedGraph,
    config: LinkConfig,
    description: str,
    extras: Mapping[str, NDArray[Any]],
) -> EmbeddingFile:
    """Opens or creates the embeddings of a run.

    Args:
        folder, graph, config: of the run.
        description: of further options that must be unchanged to continue.
        extras: arrays committed with the initial values.

    Raises:
        ValueError: if the folder holds embeddings of another partitioning or configuration.
    """
    text = f"{config} {graph.num_nodes} {graph.num_edges} {description}"
    identity = np.frombuffer(text.encode(), np.uint8)
    digest = np.frombuffer(graph.digest.encode(), np.uint8)
    try:
        file = EmbeddingFile(folder, cached=graph.cached)
    except FileNotFoundError:
        shape = (graph.partition_size, config.dimension)

        def initial(partition: int) -> FloatArray:
            """Returns ``[rows, D]`` float32, which depends only on the seed and the partition."""
            rng = np.random.default_rng([config.seed, 0, partition])
            return config.spread * rng.standard_normal(shape, np.float32)

        return EmbeddingFile.create(
            folder, graph.num_partitions, graph.partition_size, config.dimension, initial,
            {"identity": identity, "partition": digest, "history": bytes_of(()), **extras},
            cached=graph.cached,
        )  # fmt: skip
    recorded, trained = (
        file.extras.get(name, np.empty(0, np.uint8)).tobytes().decode()
        for name in ("partition", "identity")
    )
    problem = ""
    if recorded != graph.digest:
        problem = (
            f"of the partitioned graph {recorded or '(of an older version)'}; {graph.folder} is "
            f"{graph.digest}, whose nodes have other numbers: partition with the same seed over "
            "the same edges to go on"
        )
    elif trained != text:
        problem = f"trained as {trained}; this is {text}: go on with the same"
    if problem:
        file.close()
        raise ValueError(f"{folder} holds embeddings {problem}, or choose another folder")
    return file


def bytes_of(history: Sequence[Any]) -> NDArray[np.uint8]:
    """Encodes epochs, dataclasses each, as an array that a commit can contain."""
    text = json.dumps([asdict(epoch) for epoch in history], allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)
