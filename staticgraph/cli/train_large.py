"""``staticgraph train-large``: train on one graph whose partitions pass through a buffer."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staticgraph.outofcore import LinkConfig, Tuning

EXAMPLE = """\
examples:
  staticgraph train-large --task link --data fb15k-237 --policy comet
  staticgraph train-large --task link --data fb15k-237 --policy beta --partitions 16 --buffer 4
  staticgraph train-large --task link --data fb15k-237 --encoder sage --fanouts 10 --epochs 3
  staticgraph train-large --task node --data cora --policy dispersed --model gcn

The folder gets the partitions, the embeddings (links; a killed run goes on from its last epoch),
report.json and schedule.png, which shows what was resident when and how long training waited.
"""
LINK_POLICIES = ("in-memory", "comet", "beta")
NODE_POLICIES = ("in-memory", "node-cache", "dispersed")
# Partitions and buffer where neither is given: those of the published comparison.
DEFAULTS = {
    "in-memory": (1, 1), "comet": (32, 8), "beta": (16, 4), "node-cache": (16, 8),
    "dispersed": (16, 4),
}  # fmt: skip
SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "train-large",
        help="train on one graph larger than memory",
        description="Train on one graph whose partitions lie on disk.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", choices=("link", "node"), required=True)
    parser.add_argument(
        "--data", required=True, metavar="SPEC",
        help="fb15k-237, cora, citeseer, cornell5, or a .npz file",
    )  # fmt: skip
    buffer = parser.add_argument_group("buffer")
    buffer.add_argument(
        "--policy", choices=tuple(DEFAULTS), default="comet",
        help="comet and beta for links, node-cache and dispersed for nodes (default: comet)",
    )  # fmt: skip
    buffer.add_argument("--partitions", type=int, metavar="P", help="on disk")
    buffer.add_argument("--buffer", type=int, metavar="C", help="partitions resident at once")
    buffer.add_argument("--logical", type=int, metavar="L", help="comet's groups (default: 2P/C)")
    buffer.add_argument(
        "--memory", metavar="BYTES", help="choose all three for so much memory, as in 512M (comet)"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, help="(default: 10 for links, 50 for nodes)")
    training.add_argument("--batch-size", type=int, help="(default: 1000 edges, 64 nodes)")
    training.add_argument("--rate", type=float, help="(default: 0.1 for links, 0.01 for nodes)")
    training.add_argument("--seed", type=int, default=0, help="(default: 0)")
    links = parser.add_argument_group("links")
    links.add_argument("--decoder", choices=("distmult", "complex", "transe"), default="distmult")
    links.add_argument("--dimension", type=int, default=50, help="(default: 50)")
    links.add_argument("--chunks", type=int, help="of a batch (default: 10, or 1 with an encoder)")
    links.add_argument("--negatives", type=int, default=500, help="a chunk and side (default: 500)")
    links.add_argument("--degree-fraction", type=float, default=0.0, help="(default: 0)")
    links.add_argument(
        "--encoder",
        choices=("sage", "gcn", "gat"),
        help="of sampled neighbourhoods (default: none)",
    )
    links.add_argument(
        "--encoder-rate", type=float, default=0.01, help="Adagrad's on the encoder (default: 0.01)"
    )
    nodes = parser.add_argument_group("nodes")
    nodes.add_argument("--model", choices=("sage", "gcn", "gat"), default="sage")
    nodes.add_argument("--hidden", type=int, default=64, help="(default: 64)")
    nodes.add_argument("--dropout", type=float, default=0.5, help="(default: 0.5)")
    parser.add_argument(
        "--fanouts", default="10,10",
        help="with --model and --encoder: a layer each, from the seeds on (default: 10,10)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("runs/large"), metavar="DIR",
        help="the run's folder (default: runs/large)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Trains, evaluates, and prints the report."""
    allowed = LINK_POLICIES if args.task == "link" else NODE_POLICIES
    if args.policy not in allowed:
        args.parser.error(f"--task {args.task} takes --policy {', '.join(allowed)}")
    if args.overwrite and args.out.exists():
        if any(args.out.iterdir()) and not (args.out / "graph" / "manifest.json").exists():
            args.parser.error(f"{args.out} is not a run; choose another --out")
        shutil.rmtree(args.out)
    report, text = _links(args) if args.task == "link" else _nodes(args)
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else text)
    return 0


def _links(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
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

    links = data.open_links(args.data)
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
            links.num_nodes, links.train.shape[1], 8 * args.dimension, 12, _bytes(args.memory)
        )
    p, c, logical = _sizes(args, tuned)
    policy = {"in-memory": InMemory(), "beta": None, "comet": None}[args.policy]
    if policy is None:
        policy = Beta(c) if args.policy == "beta" else Comet(c, logical)
    graph = _graph(args, links.train, links.num_nodes, p)
    if args.encoder:
        trainer = _encoded(args, graph, policy, config)
    else:
        trainer = LinkTrainer(graph, policy, config, args.out / "embeddings")
    epochs = []
    while trainer.epoch < (args.epochs or 10):
        epochs.append(asdict(trainer.train_epoch(_state)))
        done = epochs[-1]
        _say(
            f"\repoch {done['epoch']:3}  loss {done['loss']:.4f}  {done['states']} states  "
            f"{done['partitions_read']} reads  bias {done['bias']:.3f}  {done['seconds']:.1f} s  "
            f"waited {done['waited_s']:.2f} s\n"
        )
    if trainer.buffer.times:
        timeline.plot(trainer.buffer.times, p, args.out / "schedule.png")
    score = evaluate_links(trainer, links.test, links.known)
    trainer.close()
    rows = [("MRR", f"{score.mrr:.4f}")] + [
        (f"Hits@{k}", f"{v:.4f}") for k, v in score.hits.items()
    ]
    model = f"{args.encoder}, {config.decoder}" if args.encoder else config.decoder
    title = f"{links.name}, {args.policy} p={p} c={policy.slots(p)}, {model}"
    report = {
        "task": "link", "data": links.name, "policy": str(policy), "partitions": p,
        "encoder": args.encoder, "fanouts": args.fanouts if args.encoder else None,
        "config": asdict(config), "epochs": epochs, "test": asdict(score),
    }  # fmt: skip
    return report, table((title, "filtered test"), rows)


def _encoded(args: argparse.Namespace, graph: Any, policy: Any, config: LinkConfig) -> Any:
    """The trainer of embeddings below a graph network, as wide as they are."""
    import torch

    from staticgraph.outofcore import EncodedLinkTrainer, SampledGNN

    fanouts, d = _fanouts(args), config.dimension
    # Heads of attention must divide the width.
    heads = next(h for h in (4, 2, 1) if d % h == 0)
    torch.manual_seed(args.seed)
    encoder = SampledGNN(args.encoder, d, d, d, len(fanouts), heads=heads)
    return EncodedLinkTrainer(
        graph, policy, config, encoder, fanouts, args.out / "embeddings",
        encoder_rate=args.encoder_rate,
    )  # fmt: skip


def _fanouts(args: argparse.Namespace) -> list[int]:
    try:
        return [int(f) for f in args.fanouts.split(",")]
    except ValueError:
        raise ValueError(f"--fanouts {args.fanouts}: give whole numbers, as in 10,10") from None


def _nodes(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
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

    nodes = data.open_nodes(args.data)
    p, c, _ = _sizes(args, None)
    fanouts = _fanouts(args)
    cache = args.policy == "node-cache"
    policy = InMemory() if args.policy == "in-memory" else None
    if policy is None:
        policy = NodeCache(c) if cache else Dispersed(c)
    graph = _graph(
        args, nodes.edges, len(nodes.labels), p, features=nodes.features,
        training_nodes=nodes.train if cache else None,
    )  # fmt: skip
    loader = SampledLoader(
        graph, policy, fanouts, args.batch_size or 64, seeds=nodes.train, labels=nodes.labels,
        seed=args.seed,
    )  # fmt: skip
    torch.manual_seed(args.seed)
    classes = int(nodes.labels.max()) + 1
    model = SampledGNN(
        args.model, nodes.features.shape[1], args.hidden, classes, len(fanouts), args.dropout
    )
    trainer = NodeTrainer(model, loader, rate=args.rate or 0.01)
    epochs = []
    best, chosen = -1.0, {k: v.clone() for k, v in model.state_dict().items()}
    for _ in range(args.epochs or 50):
        done = asdict(trainer.train_epoch())
        done["valid"] = trainer.evaluate_whole(nodes.valid, nodes.labels)
        if done["valid"] > best:
            best, chosen = done["valid"], {k: v.clone() for k, v in model.state_dict().items()}
        epochs.append(done)
        _say(
            f"epoch {done['epoch']:3}  loss {done['loss']:.4f}  train {done['accuracy']:.3f}  "
            f"valid {done['valid']:.3f}  {done['partitions_read']} reads  {done['seconds']:.2f} s  "
            f"waited {done['waited_s']:.2f} s\n"
        )
    timeline.plot(loader.states.times, p, args.out / "schedule.png")
    model.load_state_dict(chosen)
    accuracy = trainer.evaluate_whole(nodes.test, nodes.labels)
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
        "task": "node", "data": nodes.name, "policy": str(policy), "partitions": p,
        "model": args.model, "fanouts": fanouts, "seed": args.seed, "epochs": epochs,
        "valid_accuracy": best, "test_accuracy": accuracy,
        "majority": float(np.bincount(nodes.labels[nodes.test]).max() / len(nodes.test)),
    }  # fmt: skip
    title = f"{nodes.name}, {args.policy} p={p} c={policy.slots(p)}, {args.model}"
    return report, table((title, ""), rows)


def _sizes(args: argparse.Namespace, tuned: Tuning | None) -> tuple[int, int, int | None]:
    """p, c and l."""
    if tuned is not None:
        if args.policy != "comet":
            args.parser.error("--memory chooses for --policy comet")
        return tuned.partitions, max(2, tuned.buffer), None if tuned.in_memory else tuned.logical
    p, c = DEFAULTS[args.policy]
    return args.partitions or p, args.buffer or c, args.logical


def _graph(args: argparse.Namespace, edges: Any, num_nodes: int, p: int, **more: Any) -> Any:
    """The partitioned graph of the run, made where it is missing."""
    from staticgraph.outofcore import PartitionedGraph, partition

    folder = args.out / "graph"
    if (folder / "manifest.json").exists():
        graph = PartitionedGraph(folder)
        found = (graph.num_nodes, graph.num_edges, graph.num_partitions, graph.manifest.seed)
        wanted = (num_nodes, edges.shape[1], p, args.seed)
        if found == wanted:
            return graph
        raise ValueError(
            f"{folder} has nodes, edges, partitions, seed {found}, asked was {wanted}: choose "
            "another --out, or --overwrite"
        )
    return partition(edges, num_nodes, p, folder, seed=args.seed, **more)


def _bytes(text: str) -> int:
    unit = SUFFIXES.get(text[-1:].upper(), 1)
    try:
        return int(float(text[:-1] if unit > 1 else text) * unit)
    except ValueError:
        raise ValueError(f"--memory {text}: give bytes, or a number with K, M or G") from None


def _state(number: int, of: int) -> None:
    _say(f"\rstate {number + 1} of {of} ")


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
