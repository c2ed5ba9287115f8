"""``staticgraph train``: trains a model on a data set, with fixed shapes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from staticgraph.cli import DIVERGED, INTERRUPTED, values
from staticgraph.cli.data_options import add_data
from staticgraph.cli.device_check import check_mode
from staticgraph.cli.loading import load, look_at_names, look_for, look_for_modules
from staticgraph.cli.model_options import add_model, check_heads, check_sizes
from staticgraph.errors import Diverged
from staticgraph.files.json_text import to_json
from staticgraph.steps.compilation.modes import MODES
from staticgraph.training.run_folder import named_in, require_free, require_run
from staticgraph.training.schedule import SCHEDULES

EXAMPLE = """\
examples:
  staticgraph train --data examples/data/hiv.npz --model gps --hidden 32 --layers 3 --epochs 2
  staticgraph train --data tu:PROTEINS --model gin --epochs 20 --out runs/proteins
  staticgraph train --resume --out runs/proteins --epochs 40
  staticgraph train --data examples/data/hiv.npz --model mymodule:build --schedule cosine
  staticgraph train --config runs/proteins/config.toml --lr 0.01 --out runs/proteins2

The folder gets checkpoint.pt, config.toml, plan.json, steps.csv, report.json, report.png and
TensorBoard's files. A --config is TOML with the options by name, such as batch-size = 64; what is
given on the command line overrides it.

Ctrl-C stops after the present step, with a checkpoint; --resume continues from there as if the run
had never stopped.

On several GPUs or machines, --batch-size is per process:
  torchrun --nproc-per-node 4 -m staticgraph.cli train --data ogb:ogbg-molhiv --out runs/hiv
"""
OUT = Path("runs/latest")


def register(commands: Any) -> None:
    """Adds the command; a setting that is not given is missing from the namespace."""
    parser = commands.add_parser(
        "train",
        help="train a model on a data set in fixed shapes",
        description="Train a graph neural network on a data set, in a few fixed shapes.",
        epilog=EXAMPLE,
        argument_default=argparse.SUPPRESS,
    )
    add_data(parser.add_argument_group("data"), default=None)
    add_model(parser.add_argument_group("model"), default=None)
    _add_training(parser.add_argument_group("training"))
    _add_machine(parser.add_argument_group("machine"))
    _add_files(parser.add_argument_group("files"))
    parser.set_defaults(run=run, parser=parser)


def _add_training(training: Any) -> None:
    """Adds the options for training."""
    training.add_argument(
        "--loss", type=values.words, metavar="MODULE:NAME",
        help="loss(out, batch) that returns one value per row (default: the loss that fits the "
        "target y)",
    )  # fmt: skip
    training.add_argument(
        "--batch-size", type=values.whole(), help="graphs per batch (default: 128)"
    )
    training.add_argument(
        "--epochs",
        type=values.whole(),
        help="epochs in all, including those before a resume (default: 3)",
    )
    training.add_argument("--lr", type=values.rate, help="learning rate of Adam (default: 0.001)")
    training.add_argument(
        "--schedule",
        choices=tuple(SCHEDULES),
        help="how the learning rate changes: "
        + "; ".join(f"{name} {what}" for name, what in SCHEDULES.items())
        + " (default: constant)",
    )
    training.add_argument(
        "--clip-norm", type=values.number(0, more=True), metavar="X",
        help="clip the norm of all gradients together to X (default: no limit)",
    )  # fmt: skip
    training.add_argument(
        "--accumulate", type=values.whole(), metavar="K",
        help="batches per update (default: 1)",
    )  # fmt: skip
    training.add_argument(
        "--autocast",
        choices=("bfloat16",),
        help="dtype of forward and loss (default: the model's own)",
    )
    training.add_argument(
        "--early-stop", type=values.whole(), metavar="EPOCHS",
        help="stop after this many epochs without a lower validation loss (default: never)",
    )  # fmt: skip
    training.add_argument(
        "--seed", type=values.seed, help="seed of split, model and order (default: 0)"
    )


def _add_machine(machine: Any) -> None:
    """Adds the options for device, mode and workers."""
    machine.add_argument(
        "--compile-mode",
        choices=MODES,
        metavar="MODE",
        help=f"one of {', '.join(MODES)}: torch's names, and fused and cuda-graph of this library; "
        "auto times several before the first step and keeps the fastest for each bucket: eager "
        "and fused on a CPU; eager, default (compiled) and cuda-graph (recorded) on CUDA "
        "(default: auto)",
    )
    machine.add_argument(
        "--allow-cpu",
        action="store_true",
        help="allow modes that record CUDA graphs on a CPU, where they record nothing",
    )
    machine.add_argument(
        "--device", type=values.device, help="cpu, cuda, cuda:1, or auto (default: auto)"
    )
    machine.add_argument(
        "--kernels",
        choices=("auto", "on", "off"),
        help="kernels in place of the step's operations: on in every compiled mode, off in none, "
        "auto only where --compile-mode is or chooses fused (default: auto)",
    )
    machine.add_argument(
        "--store",
        choices=("auto", "host", "device"),
        help="where the graphs are: auto is on CUDA where they fit a quarter of its free memory, "
        "else on the host (default: auto)",
    )
    machine.add_argument(
        "--workers", type=values.auto_or(values.whole(0, 256)), metavar="N",
        help="threads that fill batches; auto times the first steps (default: 0)",
    )  # fmt: skip


def _add_files(files: Any) -> None:
    """Adds the options for files and output."""
    files.add_argument(
        "--config", type=values.file_to_read, metavar="FILE",
        help="settings as TOML, such as the config.toml of another run",
    )  # fmt: skip
    files.add_argument(
        "--out",
        type=values.folder_to_write,
        metavar="DIR",
        help=f"the run's folder (default: {OUT})",
    )
    files.add_argument(
        "--checkpoint-every",
        type=values.whole(),
        metavar="STEPS",
        help="steps between checkpoints (default: 100)",
    )
    begin = files.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="continue the run in --out")
    begin.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    files.add_argument("--json", action="store_true", help="print the report as JSON")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Reads the settings of ``--config``, and checks each against the range of its option.

    Raises:
        ValueError: a setting is unknown or out of range.
    """
    from staticgraph.training.config_file import read_config

    options = {action.dest: action for action in args.parser._actions}
    settings = read_config(args.config)
    for name, value in settings.items():
        option = options[name]
        try:
            if option.nargs == 0:  # a flag
                if not isinstance(value, bool):
                    raise argparse.ArgumentTypeError(f"{value!r}: give true or false")
            elif option.nargs == "+":
                names = value if isinstance(value, tuple) else (value,)
                settings[name] = [option.type(str(each)) for each in names]
            elif option.type is not None:
                settings[name] = option.type(str(value))
            if option.choices is not None and value not in option.choices:
                raise argparse.ArgumentTypeError(
                    f"{value!r}: give one of {', '.join(option.choices)}"
                )
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"{args.config}: {name}: {error}") from None
    return settings


def _check_mode(args: argparse.Namespace, given: dict[str, Any]) -> None:
    mode, device = given.get("compile_mode", "auto"), given.get("device", "auto")
    check_mode(args, mode, device, given.get("allow_cpu", False))


def run(args: argparse.Namespace) -> int:
    """Trains, and prints the report."""
    given = {
        name: value
        for name, value in vars(args).items()
        if name not in ("command", "run", "parser", "out", "resume", "overwrite", "json", "config")
    }
    if "config" in args:
        given = {**_settings(args), **given}
    out = getattr(args, "out", OUT)
    resuming = getattr(args, "resume", False)
    args.model, args.loss = given.get("model"), given.get("loss")  # also from --config
    check_sizes(args)
    check_heads(args, args.model, given.get("hidden"))
    _check_mode(args, given)
    if not resuming and "data" not in given:
        args.parser.error("the argument --data is required, but for --resume or a --config with it")
    alone = "RANK" not in os.environ  # of several processes, rank 0 checks and informs the others
    if resuming:
        if alone:
            require_run(out)
        args.model = given.get("model") or named_in(out)
        args.loss = given.get("loss") or named_in(out, "loss")
        look_for_modules(args.model, args.loss)
        load()
        look_at_names(args.model, args.loss)
    else:
        if alone and not getattr(args, "overwrite", False):
            require_free(out)
        model = given.get("model", "gine")
        look_for(given["data"], given.get("target"), model=model, loss=given.get("loss"))
    _check_mode(args, given)

    from staticgraph.training.config import TrainConfig
    from staticgraph.training.interrupt import Interrupted
    from staticgraph.training.job import speaks
    from staticgraph.training.report import TrainReport
    from staticgraph.training.train import resume, train

    def show(report: TrainReport) -> None:
        """Prints a report, as JSON with ``--json``."""
        as_json = getattr(args, "json", False)
        print(to_json(report.to_dict()) if as_json else f"\n{report}")

    try:
        if resuming:
            report = resume(out, given)
        else:
            report = train(TrainConfig(**given), out, overwrite=getattr(args, "overwrite", False))
    except Diverged:
        if not speaks():
            return DIVERGED
        show(TrainReport.load(out))
        raise
    except Interrupted:
        if not speaks():
            return INTERRUPTED
        raise
    if speaks():
        show(report)
    return 0
