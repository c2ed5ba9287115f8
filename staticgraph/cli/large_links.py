"""``staticgraph train-large --task link``: embeddings, with or without a graph network above."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from staticgraph.cli.large_run import bytes_of, fanouts_of, graph_of, say, sizes_of, state

if TYPE_CHECKING:
    from staticgraph.outofcore import LinkConfig


def links(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Trains and ranks; the report and its table."""
    from staticgraph.outofcore import (
        Beta,
        Comet,
        InMemory,
        LinkConfig,
        LinkTrainer,
        data,
        evaluate_links,
        timeline,
        tune,
    )
    from staticgraph.table import table

    triples = data.open_links(args.data)
    config = LinkConfig(
        decoder=args.decoder,
        dimension=args.dimension,
        batch_size=args.batch_size or 1000,
        chunks=args.chunks or (1 if args.encoder else 10),
        negatives=args.negatives,
        degree_fraction=args.degree_fraction,
        rate=args.rate or 0.1,
        seed=args.seed,
    )
    tuned = None
    if args.memory:
        tuned = tune(
            triples.num_nodes, triples.train.shape[1], 8 * args.dimension, 12, bytes_of(args.memory)
        )
    p, c, logical = sizes_of(args, tuned)
    policy = {"in-memory": InMemory(), "beta": None, "comet": None}[args.policy]
    if policy is None:
        policy = Beta(c) if args.policy == "beta" else Comet(c, logical)
    graph = graph_of(args, triples.train, triples.num_nodes, p)
    if args.encoder:
        trainer = _encoded(args, graph, policy, config)
    else:
        trainer = LinkTrainer(graph, policy, config, args.out / "embeddings")
    epochs = []
    while trainer.epoch < (args.epochs or 10):
        epochs.append(asdict(trainer.train_epoch(state)))
        done = epochs[-1]
        say(
            f"\repoch {done['epoch']:3}  loss {done['loss']:.4f}  {done['states']} states  "
            f"{done['partitions_read']} reads  bias {done['bias']:.3f}  {done['seconds']:.1f} s  "
            f"waited {done['waited_s']:.2f} s\n"
        )
    if trainer.buffer.times:
        timeline.plot(trainer.buffer.times, p, args.out / "schedule.png")
    score = evaluate_links(trainer, triples.test, triples.known)
    trainer.close()
    rows = [("MRR", f"{score.mrr:.4f}")] + [
        (f"Hits@{k}", f"{v:.4f}") for k, v in score.hits.items()
    ]
    model = f"{args.encoder}, {config.decoder}" if args.encoder else config.decoder
    title = f"{triples.name}, {args.policy} p={p} c={policy.slots(p)}, {model}"
    report = {
        "task": "link", "data": triples.name, "policy": str(policy), "partitions": p,
        "encoder": args.encoder, "fanouts": args.fanouts if args.encoder else None,
        "config": asdict(config), "epochs": epochs, "test": asdict(score),
    }  # fmt: skip
    return report, table((title, "filtered test"), rows)


def _encoded(args: argparse.Namespace, graph: Any, policy: Any, config: LinkConfig) -> Any:
    """The trainer of embeddings below a graph network, as wide as they are."""
    import torch

    from staticgraph.outofcore import EncodedLinkTrainer, SampledGNN

    fanouts, d = fanouts_of(args), config.dimension
    # Heads of attention must divide the width.
    heads = next(h for h in (4, 2, 1) if d % h == 0)
    torch.manual_seed(args.seed)
    encoder = SampledGNN(args.encoder, d, d, d, len(fanouts), heads=heads)
    return EncodedLinkTrainer(
        graph, policy, config, encoder, fanouts, args.out / "embeddings",
        encoder_rate=args.encoder_rate,
    )  # fmt: skip
