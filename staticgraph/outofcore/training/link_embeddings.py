"""The embeddings of a run of link prediction, opened to train on or created.

A folder records how its embeddings were trained, and over which partitioned graph: row i is the
embedding of node i in the numbering of this graph only. Training further with another configuration
would mix two runs, and with another numbering would assign embeddings to wrong nodes: both are
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    try:
        file = EmbeddingFile(folder, cached=graph.cached)
    except FileNotFoundError:
        shape = (graph.partition_size, config.dimension)

        def initial(partition: int) -> FloatArray:
            """Returns ``[rows, D]`` float32, which depends only on the seed and the partition."""
            rng = np.random.default_rng([config.seed, 0, partition])
            return config.spread * rng.standard_normal(shape, np.float32)

        EmbeddingFile.create(
            folder, graph.num_partitions, *shape, initial,
            {
                "identity": bytes_of(text), "partition": bytes_of(graph.digest),
                "history": bytes_of("[]"), **extras,
            },
        )  # fmt: skip
        file = EmbeddingFile(folder, cached=graph.cached)
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


def bytes_of(text: str) -> NDArray[np.uint8]:
    """Encodes a text as an array, which a commit can contain."""
    return np.frombuffer(text.encode(), np.uint8)
