"""One graph larger than memory: GraphSAGE classifies papers with part of Cora in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from staticgraph import outofcore


def main(
    partitions: int = 16, resident: int = 8, epochs: int = 5, folder: str | None = None
) -> float:
    torch.manual_seed(0)
    nodes = outofcore.data.open_nodes("examples/data/cora.npz")
    with tempfile.TemporaryDirectory() as temporary:
        graph = outofcore.partition(
            nodes.edges,
            len(nodes.labels),
            partitions,
            Path(folder or temporary) / "graph",
            features=nodes.features,
        )
        loader = outofcore.SampledLoader(
            graph,
            outofcore.Dispersed(buffer=resident),
            fanouts=[15, 10],
            batch_size=64,
            task="node",
            seeds=nodes.train,
            labels=nodes.labels,
        )
        classes = int(nodes.labels.max()) + 1
        model = outofcore.SampledGNN(
            "sage", nodes.features.shape[1], 64, classes, layers=2, dropout=0.5
        )
        trainer = outofcore.NodeTrainer(model, loader)
        for _ in range(epochs):
            print(trainer.train_epoch())
        right = trainer.evaluate_whole(nodes.test, nodes.labels)
        print(f"{right:.1%} of the test papers are told right")
        return float(right)


if __name__ == "__main__":
    main()
