"""Small trainers of embeddings over a graph on disk, and access to all of their state."""

from __future__ import annotations

import numpy as np
import torch

from staticgraph.outofcore import LinkConfig, LinkTrainer, SampledGNN

N, RELATIONS = 37, 3
SMALL = LinkConfig(dimension=4, batch_size=20, chunks=2, negatives=6, seed=3, spread=0.5)


def random_edges(n: int, e: int, seed: int = 0, relations: int = 0) -> np.ndarray:
    """Generates edges that may be loops and may be alike, typed if there are relations."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, n, e), rng.integers(0, n, e)]
    return np.stack([*rows, rng.integers(0, relations, e)] if relations else rows)


def generated(e: int = 240, seed: int = 0) -> np.ndarray:
    """Generates distinct typed edges without self-loops."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, N, (2, e))
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    return np.concatenate([ends, rng.integers(0, RELATIONS, (1, ends.shape[1]))])


def plain(graph, policy, folder, config=SMALL) -> LinkTrainer:
    return LinkTrainer(graph, policy, config, folder)


def encoded(graph, policy, folder, config=SMALL, kind="sage", fanouts=(3,), **options):
    torch.manual_seed(0)
    encoder = SampledGNN(kind, config.dimension, 8, 6, len(fanouts), heads=2)
    return LinkTrainer(graph, policy, config, folder, encoder=encoder, fanouts=fanouts, **options)


def table_of(trainer) -> np.ndarray:
    """Returns all embeddings, by partition."""
    return np.concatenate([record(trainer.file, k)[0] for k in range(trainer.file.num_partitions)])


def record(file, partition: int) -> tuple[np.ndarray, np.ndarray]:
    values, sums = np.empty((2, file.partition_size, file.dimension), np.float32)
    file.read(partition, values, sums)
    return values, sums


def everything(trainer) -> list[np.ndarray]:
    rows = [a for k in range(trainer.file.num_partitions) for a in record(trainer.file, k)]
    # The history contains seconds, which differ between runs.
    extras = {name: a for name, a in trainer.file.extras.items() if name != "history"}
    return [*rows, *(extras[name] for name in sorted(extras))]
