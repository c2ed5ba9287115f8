"""Small trainers of an encoder over a graph on disk, and access to all of their state."""

from __future__ import annotations

import numpy as np
import torch

from staticgraph.outofcore import EncodedLinkTrainer, LinkConfig, SampledGNN

N, RELATIONS = 37, 3
SMALL = LinkConfig(dimension=4, batch_size=20, chunks=2, negatives=6, seed=3, spread=0.5)


def generated(e: int = 240, seed: int = 0) -> np.ndarray:
    """Generates distinct typed edges without self-loops."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, N, (2, e))
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    return np.concatenate([ends, rng.integers(0, RELATIONS, (1, ends.shape[1]))])


def made(graph, policy, folder, kind="sage", fanouts=(3,), config=SMALL, **options):
    torch.manual_seed(0)
    encoder = SampledGNN(kind, config.dimension, 8, 6, len(fanouts), heads=2)
    return EncodedLinkTrainer(graph, policy, config, encoder, fanouts, folder, **options)


def everything(trainer) -> list[np.ndarray]:
    shape = (trainer.file.num_partitions, 2, trainer.file.partition_size, SMALL.dimension)
    rows = np.empty(shape, np.float32)
    for k, (values, sums) in enumerate(rows):
        trainer.file.read(k, values, sums)
    # The history contains seconds, which differ between runs.
    extras = {name: a for name, a in trainer.file.extras.items() if name != "history"}
    return [rows, *(extras[name] for name in sorted(extras))]
