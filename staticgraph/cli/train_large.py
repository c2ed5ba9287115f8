"""``staticgraph train-large``: train on one graph whose partitions pass through a buffer."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from staticgraph.cli.large_run import DEFAULTS

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
    if args.task == "link":
        from staticgraph.cli.large_links import links as task
    else:
        from staticgraph.cli.large_nodes import nodes as task
    report, text = task(args)
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else text)
    return 0
