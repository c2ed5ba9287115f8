"""``staticgraph train-large --task node``: a graph network on sampled neighbourhoods."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from staticgraph.cli.large_run import GRAPH, PICTURE, given, graph_of, sizes_of
from staticgraph.errors import Diverged
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import say

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch.nn import Module

    from staticgraph.outofcore import NodeTrainer, SampleStatistics
    from staticgraph.outofcore.disk.data import NodeData


def nodes(args: argparse.Namespace) -> tuple[dict[str, Any], str, Diverged | None]:
    """Trains and evaluates; returns the report, its table, and the divergence if there was one.

    A run that diverged is not tested."""
    import numpy as np
    import torch

    from staticgraph.outofcore import (
        Dispersed,
        InMemory,
        NodeCache,
        NodeTrainer,
        SampledGNN,
        SampledLoader,
    )
    from staticgraph.outofcore.buffer import timeline
    from staticgraph.outofcore.disk import data
    from staticgraph.text.table import table

    found = data.open_nodes(args.data)
    p, c, _ = sizes_of(args, None)
    fanouts = args.fanouts
    cache = args.policy == "node-cache"
    policy = InMemory() if args.policy == "in-memory" else None
    if policy is None:
        policy = NodeCache(c, near=c) if cache else Dispersed(c)
    _tell_of_earlier(args.out)
    graph = graph_of(
        args, found.edges, len(found.labels), p, features=found.features,
        training_nodes=found.train if cache else None, near=len(fanouts) if cache else 0,
    )  # fmt: skip
    loader = SampledLoader(
        graph, policy, fanouts, given(args.batch_size, 64), seeds=found.train, labels=found.labels,
        seed=args.seed, gcn_norm=args.model == "gcn",
    )  # fmt: skip
    torch.manual_seed(args.seed)
    classes = int(found.labels.max()) + 1
    model = SampledGNN(
        args.model, found.features.shape[1], args.hidden, classes, len(fanouts), args.dropout
    )
    trainer = NodeTrainer(model, loader, rate=given(args.rate, 0.01))
    epochs, best, diverged = _train(trainer, model, found, given(args.epochs, 50))
    timeline.plot(loader.states.times, p, args.out / PICTURE)
    accuracy = None
    if diverged is None:
        accuracy = trainer.evaluate_whole(found.test, found.labels)
    statistics = loader.statistics
    loader.close()
    rows = [("diverged", f"in epoch {diverged.epoch}")] if diverged else []
    rows += [("best validation accuracy", f"{best:.4f}")] if epochs else []
    rows += [("test accuracy", f"{accuracy:.4f}")] if accuracy is not None else []
    rows += _of_batches(statistics)
    report = {
        "task": "node", "data": found.name, "policy": str(policy), "partitions": p,
        "model": args.model, "fanouts": fanouts, "seed": args.seed, "epochs": epochs,
        "diverged": diverged.epoch if diverged else None,
        "valid_accuracy": best if epochs else None, "test_accuracy": accuracy,
        "majority": float(np.bincount(found.labels[found.test]).max() / len(found.test)),
    }  # fmt: skip
    place = f"{how_many(policy.slots(p), 'partition')} of {p} in memory"
    title = f"{found.name}, {args.policy}, {place}, {args.model}"
    return report, table((title, ""), rows), diverged


def _tell_of_earlier(folder: Path) -> None:
    """Tells the user what is reused from an earlier run in the folder, and what is not."""
    if (folder / GRAPH / "manifest.json").exists():
        say(
            f"{folder} has the partitions of an earlier run, which are used again; its model was "
            "not kept, and training begins at the first epoch (runs on links are resumed, on nodes "
            "not)"
        )


def _train(
    trainer: NodeTrainer, model: Module, found: NodeData, epochs: int
) -> tuple[list[dict[str, Any]], float, Diverged | None]:
    """Trains, and restores the model of the best validation accuracy; returns the records of the
    epochs, that accuracy (-1 without an epoch), and the divergence if there was one."""
    done: list[dict[str, Any]] = []
    best, chosen = -1.0, _copied(model)
    diverged: Diverged | None = None
    for _ in range(epochs):
        try:
            epoch = asdict(trainer.train_epoch())
        except Diverged as error:
            diverged = error
            break
        epoch["valid"] = trainer.evaluate_whole(found.valid, found.labels)
        if epoch["valid"] > best:
            best, chosen = epoch["valid"], _copied(model)
        done.append(epoch)
        say(
            f"epoch {epoch['epoch']:3}  loss {epoch['loss']:.4f}  train {epoch['accuracy']:.3f}  "
            f"valid {epoch['valid']:.3f}  {how_many(epoch['partitions_read'], 'read')}  "
            f"{epoch['seconds']:.2f} s  waited {epoch['waited_s']:.2f} s"
        )
    model.load_state_dict(chosen)
    return done, best, diverged


def _copied(model: Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _of_batches(statistics: SampleStatistics) -> list[tuple[str, str]]:
    """The table rows about the shapes of batches."""
    return [
        ("batches per shape, smallest first", ", ".join(map(str, statistics.batches))),
        ("batches split", f"{statistics.splits}"),
        ("rows that are real", f"{statistics.efficiency:.1%}"),
    ]
