"""``staticgraph train-large --task link``: embeddings, optionally with a graph network on top."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from staticgraph.cli.large_run import EMBEDDINGS, PICTURE, given, graph_of, sizes_of
from staticgraph.errors import Diverged
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Status, say

if TYPE_CHECKING:
    from staticgraph.outofcore import LinkConfig
    from staticgraph.outofcore.training.ranking import LinkScore


def links(args: argparse.Namespace) -> tuple[dict[str, Any], str, Diverged | None]:
    """Trains and ranks; returns the report, its table, and the divergence if there was one.

    A run that diverged has no score; to get the score of the epoch before, use ``--epochs``."""
    from staticgraph.outofcore import (
        Beta,
        Comet,
        InMemory,
        LinkTrainer,
        evaluate_links,
        tune,
    )
    from staticgraph.outofcore.buffer import timeline
    from staticgraph.outofcore.disk import data
    from staticgraph.text.table import table

    triples = data.open_links(args.data)
    config = _config_of(args)
    tuned = None
    if args.memory is not None:
        tuned = tune(triples.num_nodes, triples.train.shape[1], 8 * args.dimension, 12, args.memory)
    p, c, logical = sizes_of(args, tuned)
    policy = {"in-memory": InMemory(), "beta": None, "comet": None}[args.policy]
    if policy is None:
        policy = Beta(c) if args.policy == "beta" else Comet(c, logical)
    graph = graph_of(args, triples.train, triples.num_nodes, p)
    more = _encoder_of(args, config) if args.encoder else {}
    trainer = LinkTrainer(graph, policy, config, args.out / EMBEDDINGS, **more)
    diverged, score = _train(trainer, given(args.epochs, 10)), None
    if trainer.buffer.times:
        timeline.plot(trainer.buffer.times, p, args.out / PICTURE)
    if diverged is None:
        score = evaluate_links(trainer, triples.test, triples.known)
        diverged = _diverged_by(trainer.epoch, score)
    epochs = [asdict(epoch) for epoch in trainer.history]
    trainer.close()
    rows = [("diverged", f"in epoch {diverged.epoch}")] if diverged else []
    if score is not None:
        rows += [("MRR", f"{score.mrr:.4f}")]
        rows += [(f"Hits@{k}", f"{v:.4f}") for k, v in score.hits.items()]
    model = f"{args.encoder}, {config.decoder}" if args.encoder else config.decoder
    place = f"{how_many(policy.slots(p), 'partition')} of {p} in memory"
    title = f"{triples.name}, {args.policy}, {place}, {model}"
    report = {
        "task": "link", "data": triples.name, "policy": str(policy), "partitions": p,
        "encoder": args.encoder, "fanouts": args.fanouts if args.encoder else None,
        "config": asdict(config), "epochs": epochs,
        "diverged": diverged.epoch if diverged else None,
        "test": asdict(score) if score else None,
    }  # fmt: skip
    return report, table((title, "filtered test"), rows), diverged


def _config_of(args: argparse.Namespace) -> LinkConfig:
    """The configuration of link training from the options."""
    from staticgraph.outofcore import LinkConfig

    return LinkConfig(
        decoder=args.decoder,
        dimension=args.dimension,
        batch_size=given(args.batch_size, 1000),
        chunks=given(args.chunks, 1 if args.encoder else 10),
        negatives=args.negatives,
        degree_fraction=args.degree_fraction,
        rate=given(args.rate, 0.1),
        seed=args.seed,
    )


def _diverged_by(epoch: int, score: LinkScore) -> Diverged | None:
    """The divergence if test scores are not finite, else None."""
    if not score.not_finite:
        return None
    return Diverged(
        f"the training diverged by epoch {epoch}: {score.not_finite} of {2 * score.edges} tested "
        "ends have a score that is not finite. Train again with a lower --rate",
        epoch,
    )


def _train(trainer: Any, epochs: int) -> Diverged | None:
    """Trains until this many epochs are committed; returns the divergence if one diverges."""
    status = Status()

    def show_state(number: int, of: int) -> None:
        """Shows which of the epoch's buffer states is being trained."""
        status.show(f"epoch {trainer.epoch + 1}: state {number + 1} of {of}")

    while trainer.epoch < epochs:
        try:
            done = trainer.train_epoch(show_state)
        except Diverged as error:
            status.clear()
            return error
        status.clear()
        say(
            f"epoch {done.epoch:3}  loss {done.loss:.4f}  {how_many(done.states, 'state')}  "
            f"{how_many(done.partitions_read, 'read')}  bias {done.bias:.3f}  {done.seconds:.1f} s "
            f" waited {done.waited_s:.2f} s"
        )
    return None


def _encoder_of(args: argparse.Namespace, config: LinkConfig) -> dict[str, Any]:
    """The trainer's options for a graph network of the same width on top of the embeddings."""
    import torch

    from staticgraph.outofcore import SampledGNN

    fanouts, d = args.fanouts, config.dimension
    # Heads of attention must divide the width.
    heads = next(h for h in (4, 2, 1) if d % h == 0)
    torch.manual_seed(args.seed)
    encoder = SampledGNN(args.encoder, d, d, d, len(fanouts), heads=heads)
    return {"encoder": encoder, "fanouts": fanouts, "encoder_rate": args.encoder_rate}
