"""``staticgraph train-large``: trains on one graph whose partitions are buffered in memory."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from staticgraph.cli import values
from staticgraph.cli.large_run import DEFAULTS, EMBEDDINGS, GRAPH, PICTURE, REPORT
from staticgraph.cli.loading import look_for_graph
from staticgraph.files.json_text import save_json, to_json

EXAMPLE = """\
examples:
  staticgraph train-large --data fb15k-237
  staticgraph train-large --task link --data fb15k-237 --policy beta --partitions 16 --buffer 4
  staticgraph train-large --task link --data fb15k-237 --encoder sage --fanouts 10 --epochs 3
  staticgraph train-large --data cora --model gcn

The folder gets the partitions, the embeddings (links), report.json and schedule.png, which shows
what was resident when and how long training waited. The same command again continues a
killed run on links after its last epoch. A run on nodes is not resumed: it uses the partitions that
are there, and trains from the first epoch.
"""
LINK_POLICIES = ("in-memory", "comet", "beta")
NODE_POLICIES = ("in-memory", "node-cache", "dispersed")
WIDTH = values.whole(1, values.WIDEST)  # columns


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "train-large",
        help="train on one graph larger than memory",
        description="Train on one graph whose partitions lie on disk.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "--task", choices=("link", "node"),
        help="predict missing links, or the labels of nodes (default: node if the data has labels, "
        "else link)",
    )  # fmt: skip
    parser.add_argument(
        "--data", required=True, type=values.words, metavar="SPEC",
        help="fb15k-237, cora, citeseer, cornell5, a .npz file, or a folder of staticgraph "
        "partition (links)",
    )  # fmt: skip
    _add_sizes(parser.add_argument_group("buffer"))
    _add_training(parser)
    parser.add_argument(
        "--out", type=values.folder_to_write, default=Path("runs/large"), metavar="DIR",
        help="the run's folder (default: runs/large)",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run, parser=parser)


def _add_sizes(buffer: Any) -> None:
    """Adds the options for partitions and buffer."""
    buffer.add_argument(
        "--policy", choices=tuple(DEFAULTS),
        help="comet and beta for links, node-cache and dispersed for nodes (default: comet for "
        "links, dispersed for nodes)",
    )  # fmt: skip
    buffer.add_argument(
        "--partitions",
        type=values.whole(),
        metavar="P",
        help="partitions on disk (default: 32 for comet, 1 for in-memory, else 16)",
    )
    buffer.add_argument(
        "--buffer",
        type=values.whole(),
        metavar="C",
        help="partitions in memory at once (default: 4 for beta, 1 for in-memory, else 8)",
    )
    buffer.add_argument(
        "--logical", type=values.whole(), metavar="L", help="comet's groups (default: 2P/C)"
    )
    buffer.add_argument(
        "--memory", type=values.byte_size, metavar="SIZE",
        help="choose all three for this much memory, such as 512M (comet)",
    )  # fmt: skip


def _add_training(parser: argparse.ArgumentParser) -> None:
    """Adds the options for training."""
    training = parser.add_argument_group("training")
    training.add_argument(
        "--epochs",
        type=values.whole(),
        help="passes over the edges or training nodes (default: 10 for links, 50 for nodes)",
    )
    training.add_argument(
        "--batch-size",
        type=values.whole(),
        help="edges or training nodes per batch (default: 1000 edges, 64 nodes)",
    )
    training.add_argument(
        "--rate", type=values.rate, help="learning rate (default: 0.1 for links, 0.01 for nodes)"
    )
    training.add_argument(
        "--seed",
        type=values.seed,
        default=0,
        help="seed of weights, order and samples (default: 0)",
    )
    _add_links(parser.add_argument_group("links"))
    _add_nodes(parser.add_argument_group("nodes"))
    parser.add_argument(
        "--fanouts", type=values.fanouts, default=[10, 10], metavar="K,K",
        help="neighbours sampled, one number per layer, from the seeds on (default: 10,10)",
    )  # fmt: skip


def _add_links(links: Any) -> None:
    """Adds the options for links."""
    links.add_argument(
        "--decoder",
        choices=("distmult", "complex", "transe"),
        default="distmult",
        help="scoring function of a link (default: distmult)",
    )
    links.add_argument(
        "--dimension", type=WIDTH, default=50, help="size of an embedding (default: 50)"
    )
    links.add_argument(
        "--chunks",
        type=values.whole(),
        help="parts of a batch that share negatives (default: 10, or 1 with an encoder)",
    )
    links.add_argument(
        "--negatives",
        type=values.whole(),
        default=500,
        help="negative samples per chunk and side (default: 500)",
    )
    links.add_argument(
        "--degree-fraction",
        type=values.share,
        default=0.0,
        help="share of negatives drawn by degree (default: 0)",
    )
    links.add_argument(
        "--encoder",
        choices=("sage", "gcn", "gat"),
        help="layers over sampled neighbourhoods (default: none)",
    )
    links.add_argument(
        "--encoder-rate",
        type=values.rate,
        default=0.01,
        help="learning rate of the encoder (default: 0.01)",
    )


def _add_nodes(nodes: Any) -> None:
    """Adds the options for nodes."""
    nodes.add_argument(
        "--model",
        choices=("sage", "gcn", "gat"),
        default="sage",
        help="layers over sampled neighbourhoods (default: sage)",
    )
    nodes.add_argument(
        "--hidden", type=WIDTH, default=64, help="width of every layer (default: 64)"
    )
    nodes.add_argument(
        "--dropout", type=values.share, default=0.5, help="dropout between layers (default: 0.5)"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, evaluates, and prints the report."""
    if args.task is None:
        from staticgraph.outofcore.disk.data import has_labels

        args.task = "node" if has_labels(args.data) else "link"
    allowed = LINK_POLICIES if args.task == "link" else NODE_POLICIES
    args.policy = args.policy or ("comet" if args.task == "link" else "dispersed")
    if args.policy not in allowed:
        args.parser.error(f"--task {args.task} takes --policy {', '.join(allowed)}")
    look_for_graph(args.data)
    if args.task == "link":
        from staticgraph.cli.large_links import links as task
    else:
        from staticgraph.cli.large_nodes import nodes as task
    from staticgraph.files.folder_lock import folder_lock

    with folder_lock(args.out):
        if args.overwrite:
            _remove_run(args)
        report, text, diverged = task(args)
        save_json(args.out / REPORT, report)
    print(to_json(report) if args.json else text)
    if diverged is not None:
        raise diverged
    return 0


def _remove_run(args: argparse.Namespace) -> None:
    """Removes the files of an earlier run in ``--out``, and nothing else."""
    from staticgraph.files.folder import require_replaceable
    from staticgraph.outofcore.disk import manifest
    from staticgraph.outofcore.disk.embeddings import require_only

    foreign = {
        path.name
        for path in args.out.iterdir()
        if path.name not in (GRAPH, EMBEDDINGS, REPORT, PICTURE) and path.name[0] != "."
    }
    ours = manifest.KIND.is_that_of(args.out / GRAPH)
    if (foreign and not ours) or ((args.out / GRAPH).exists() and not ours):
        args.parser.error(f"{args.out} is not a run; choose another --out")
    require_replaceable(args.out / GRAPH, manifest.KIND, True)
    require_only(args.out / EMBEDDINGS)
    for name in (EMBEDDINGS, GRAPH):
        if (args.out / name).exists():
            shutil.rmtree(args.out / name)
    for name in (REPORT, PICTURE):
        (args.out / name).unlink(missing_ok=True)
