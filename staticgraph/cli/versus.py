"""``staticgraph try``: compares this library with plain PyG on a data set and a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from staticgraph.cli import values
from staticgraph.cli.data_options import add_data, open_data
from staticgraph.cli.loading import look_for
from staticgraph.cli.loss_option import loss_of
from staticgraph.cli.model_options import add_model, check_sizes, model_of, model_without_data
from staticgraph.files.json_text import to_json
from staticgraph.text.progress import is_left_out

NOT_EQUAL = 1
OUT = Path("runs/try")
REPORT, PICTURE = "try.json", "try.png"
EXAMPLE = """\
examples:
  staticgraph try --data examples/data/esol.npz --model gine
  staticgraph try --data examples/data/hiv.npz --model mymodule:build --seconds 30
  staticgraph try --data tu:PROTEINS --model gin --modes eager fused --batch-size 32

Plain PyG and this library train the same model from the same weights over the same batches, and
take turns: PyG with its fastest number of workers, this library in each mode. A mode is one of
staticgraph train --compile-mode, with +kernels for the fused kernels, as default+kernels;
pyg-compiled is plain PyG under torch.compile(dynamic=True). The folder gets try.json, which is for
a bug report, and try.png. The exit status is 1 where no mode of this library runs the model, or
where losses or outputs differ.
"""


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "try",
        help="compare this library with plain PyG on your data and model",
        description="Train a model by plain PyG and by this library in turn for about a minute, "
        "and say which is faster, at what memory, and whether both compute the same.",
        epilog=EXAMPLE,
    )
    add_data(parser, required=True)
    group = parser.add_argument_group("model")
    add_model(group)
    group.add_argument(
        "--loss", type=values.words, metavar="MODULE:NAME",
        help="loss(out, batch) that returns one value per row (default: the loss that fits the "
        "target y)",
    )  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument(
        "--batch-size", type=values.whole(), default=128, help="graphs per batch (default: 128)"
    )
    how.add_argument(
        "--seconds", type=values.number(0, more=True), default=60.0,
        help="about how many seconds in all, without compiling (default: 60)",
    )  # fmt: skip
    how.add_argument(
        "--modes", type=values.words, nargs="+", metavar="MODE",
        help="modes to try (default: eager and fused on a CPU; on CUDA also "
        "compiled and recorded)",
    )  # fmt: skip
    how.add_argument(
        "--device", type=values.device, default="auto",
        help="cpu, cuda, cuda:1, or auto (default: auto)",
    )  # fmt: skip
    how.add_argument(
        "--seed", type=values.seed, default=0, help="seed of split, model and order (default: 0)"
    )
    out = parser.add_argument_group("output")
    out.add_argument(
        "--out", type=values.folder_to_write, default=OUT, metavar="DIR",
        help=f"folder for {REPORT} and {PICTURE} (default: {OUT})",
    )  # fmt: skip
    out.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Measures, prints the report, and writes report and plot."""
    check_sizes(args)
    look_for(args.data, args.target, model=args.model, loss=args.loss)
    import torch

    from staticgraph.models.named import require_trainable
    from staticgraph.training.device import device_of
    from staticgraph.training.versus.comparison import compare
    from staticgraph.training.versus.picture import save_versus_picture

    args.out.mkdir(parents=True, exist_ok=True)  # fails before a minute of measuring, not after it
    device = device_of(args.device)
    model = model_without_data(args)
    store = open_data(args, args.seed)
    loss, outputs = loss_of(args.loss, store, args.task)
    if model is None:
        torch.manual_seed(args.seed)
        model = model_of(args, store, outputs)
        require_trainable(model, args.model)
    report = compare(
        model,
        store,
        loss=loss,
        batch_size=args.batch_size,
        seconds=args.seconds,
        modes=args.modes,
        device=device,
        seed=args.seed,
    )
    report.save(args.out / REPORT)
    print(to_json(report.to_dict()) if args.json else report)
    written = [args.out / REPORT]
    if report.winner and not is_left_out(args.out / PICTURE, "matplotlib"):
        save_versus_picture(args.out / PICTURE, report)
        written.append(args.out / PICTURE)
    print(f"written: {', '.join(map(str, written))}", file=sys.stderr)
    return 0 if report.ok else NOT_EQUAL
