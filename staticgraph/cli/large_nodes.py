"""``staticgraph train-large --task node``: a graph network over sampled neighbourhoods."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from staticgraph.cli.large_run import fanouts_of, graph_of, say, sizes_of


def nodes(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Trains and evaluates; the report and its table."""
    import numpy as np
    import torch

    from staticgraph.outofcore import (
        Dispersed,
        InMemory,
        NodeCache,
        NodeTrainer,
        SampledGNN,
        SampledLoader,
        data,
        timeline,
    )
    from staticgraph.table import table

    given = data.open_nodes(args.data)
    p, c, _ = sizes_of(args, None)
    fanouts = fanouts_of(args)
    cache = args.policy == "node-cache"
    policy = InMemory() if args.policy == "in-memory" else None
    if policy is None:
        policy = NodeCache(c) if cache else Dispersed(c)
    graph = graph_of(
        args, given.edges, len(given.labels), p, features=given.features,
        training_nodes=given.train if cache else None,
    )  # fmt: skip
    loader = SampledLoader(
        graph, policy, fanouts, args.batch_size or 64, seeds=given.train, labels=given.labels,
        seed=args.seed,
    )  # fmt: skip
    torch.manual_seed(args.seed)
    classes = int(given.labels.max()) + 1
    model = SampledGNN(
        args.model, given.features.shape[1], args.hidden, classes, len(fanouts), args.dropout
    )
    trainer = NodeTrainer(model, loader, rate=args.rate or 0.01)
    epochs = []
    best, chosen = -1.0, {k: v.clone() for k, v in model.state_dict().items()}
    for _ in range(args.epochs or 50):
        done = asdict(trainer.train_epoch())
        done["valid"] = trainer.evaluate_whole(given.valid, given.labels)
        if done["valid"] > best:
            best, chosen = done["valid"], {k: v.clone() for k, v in model.state_dict().items()}
        epochs.append(done)
        say(
            f"epoch {done['epoch']:3}  loss {done['loss']:.4f}  train {done['accuracy']:.3f}  "
            f"valid {done['valid']:.3f}  {done['partitions_read']} reads  {done['seconds']:.2f} s  "
            f"waited {done['waited_s']:.2f} s\n"
        )
    timeline.plot(loader.states.times, p, args.out / "schedule.png")
    model.load_state_dict(chosen)
    accuracy = trainer.evaluate_whole(given.test, given.labels)
    statistics = loader.ladder.statistics if loader.ladder else None
    loader.close()
    rows = [("best validation accuracy", f"{best:.4f}"), ("test accuracy", f"{accuracy:.4f}")]
    if statistics is not None:
        rows += [
            ("batches a rung", " ".join(map(str, statistics.batches))),
            ("split, in eager", f"{statistics.splits}, {statistics.eager}"),
            ("row efficiency", f"{statistics.efficiency:.3f}"),
        ]
    report = {
        "task": "node", "data": given.name, "policy": str(policy), "partitions": p,
        "model": args.model, "fanouts": fanouts, "seed": args.seed, "epochs": epochs,
        "valid_accuracy": best, "test_accuracy": accuracy,
        "majority": float(np.bincount(given.labels[given.test]).max() / len(given.test)),
    }  # fmt: skip
    title = f"{given.name}, {args.policy} p={p} c={policy.slots(p)}, {args.model}"
    return report, table((title, ""), rows)
