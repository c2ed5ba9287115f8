"""``staticgraph probe``: the memory of a model's training step, at any batch size."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticgraph.cli import values
from staticgraph.cli.data_options import add_data, open_data
from staticgraph.cli.loading import look_for
from staticgraph.cli.loss_option import loss_of
from staticgraph.cli.model_options import add_model, check_sizes, model_of, model_without_data
from staticgraph.files.json_text import to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import is_left_out, waiting

if TYPE_CHECKING:
    import torch

    from staticgraph.memory.model import MemoryModel

EXAMPLE = """\
examples:
  staticgraph probe --data examples/data/hiv.npz --model gps
  staticgraph probe --data examples/data/hiv.npz --model gps --out memory.json --plot memory.png
  staticgraph plan --data examples/data/hiv.npz --memory memory.json --max-memory 20GiB

Without a GPU a step runs over fake tensors, in milliseconds and without memory: --like cuda counts
it as a GPU's allocator would, and with --compiled as torch's compiler writes it. On a GPU, --device
cuda runs real steps.
"""
OPTIMIZERS = ("adam", "adamw", "sgd")


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "probe",
        help="find the memory of a step as a function of the batch",
        description="Find the memory of a training step as a function of nodes, edges and graphs.",
        epilog=EXAMPLE,
    )
    add_data(parser, required=True)
    add_training(parser)
    _add_how(parser.add_argument_group("how"))
    _add_output(parser.add_argument_group("output"))
    parser.set_defaults(run=run, parser=parser)


def _add_how(how: Any) -> None:
    """Adds the options for the measurement and the fit."""
    how.add_argument(
        "--form",
        choices=("auto", "linear", "attention", "quadratic"),
        default="auto",
        help="form of the fitted model, see docs/memory.md (default: auto)",
    )
    how.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device that a step runs on (default: cpu)",
    )
    how.add_argument(
        "--like", choices=("cpu", "cuda"), default="cpu",
        help="on a CPU: count as this device's allocator would (default: cpu)",
    )  # fmt: skip
    how.add_argument(
        "--compiled",
        action="store_true",
        help="with --like cuda: the step as torch's compiler writes it, for the compiled and the "
        "recorded modes; takes minutes",
    )
    how.add_argument(
        "--for",
        dest="gpu",
        choices=("h100", "h200", "a100", "l4"),
        default="h100",
        help="with --compiled: the device to compile for (default: h100)",
    )
    how.add_argument(
        "--path",
        choices=("recorded", "counted"),
        default="recorded",
        help="the shapes of compiled and recorded steps, or those of eager steps, whose layers "
        "follow the real counts of a batch (default: recorded)",
    )
    how.add_argument(
        "--max-memory", type=values.byte_size, metavar="SIZE",
        help="cap to show with the result, such as 20GiB",
    )  # fmt: skip


def _add_output(out: Any) -> None:
    """Adds the options for files and output."""
    out.add_argument(
        "--out", type=values.file_to_write, metavar="FILE", help="write the model of memory as JSON"
    )
    out.add_argument(
        "--plot",
        type=values.picture_to_write,
        nargs="?",
        const=Path("memory.png"),
        metavar="FILE",
        help="draw curve and points as a PNG (memory.png if no name is given)",
    )
    out.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_training(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the model and how it is trained."""
    group = parser.add_argument_group("model and training")
    add_model(group)
    group.add_argument(
        "--loss", type=values.words, metavar="MODULE:NAME",
        help="loss(out, batch) that returns one value per row (default: the loss that fits the "
        "target y)",
    )  # fmt: skip
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adam",
        help="optimizer of the step (default: adam)",
    )
    group.add_argument(
        "--autocast", choices=("bfloat16",),
        help="dtype of forward and loss (default: the model's own)",
    )  # fmt: skip
    group.add_argument(
        "--kernels",
        action="store_true",
        help="choose attention paths as a compiled step with kernels does",
    )
    group.add_argument(
        "--accumulate",
        type=values.whole(),
        default=1,
        help="backward passes per update (default: 1)",
    )


def run(args: argparse.Namespace) -> int:
    """Probes, and prints the memory model."""
    check_sizes(args)
    if args.compiled and (args.like != "cuda" or args.device == "cuda"):
        args.parser.error("--compiled counts a step for a GPU that is not here: give --like cuda")
    if args.compiled and args.path == "counted":
        args.parser.error("--compiled reads recorded shapes alone: leave --path counted out")
    look_for(args.data, args.target, model=args.model, loss=args.loss)
    import torch

    from staticgraph.memory.budget import MemoryBudget

    if args.device == "cuda" and not torch.cuda.is_available():
        args.parser.error(
            "argument --device: torch sees no CUDA device; --device cpu --like cuda counts a step "
            "as a GPU's allocator would"
        )
    budget = MemoryBudget(args.max_memory) if args.max_memory else None
    early = model_without_data(args)
    store = open_data(args)
    begin = time.perf_counter()
    measure = probe_of(store, args, early)
    with waiting(f"measuring steps of {args.model}" + (" as compiled" if args.compiled else "")):
        memory = measure()
    seconds = time.perf_counter() - begin
    if args.out:
        memory.save(args.out)
    draws = args.plot and not is_left_out(args.plot, "matplotlib")
    if draws:
        from staticgraph.cli.reports.memory_plots import save_memory_picture

        save_memory_picture(args.plot, memory, f"{args.model} on {store.name}", budget)
    if args.json:
        print(to_json({**memory.to_dict(), "seconds": seconds}))
    else:
        print(memory)
        print(
            f"{how_many(len(memory.points) + (memory.checked is not None), 'point')} in "
            f"{seconds:.1f} s"
        )
    if draws:
        print(f"picture: {args.plot}", file=sys.stderr)
    return 0


def probe_model(
    store: Any, args: argparse.Namespace, model: torch.nn.Module | None = None
) -> MemoryModel:
    """Measures the memory of the model and the training that the options name."""
    return probe_of(store, args, model)()


def probe_of(
    store: Any, args: argparse.Namespace, model: torch.nn.Module | None = None
) -> Callable[[], MemoryModel]:
    """The probe that the options name, ready to be called; invalid options are refused here.

    Args:
        store: the data.
        args: the options.
        model: the model that the options name, if it is built already.

    Raises:
        ValueError: a model of the zoo cannot take the graphs, or the model or the loss is invalid.
    """
    import torch

    from staticgraph.dryrun.compiled_probe import probe
    from staticgraph.models.named import require_trainable
    from staticgraph.nn import convert

    if store.schema.hetero and args.model in values.MODELS:
        raise ValueError(
            f"the models {', '.join(values.MODELS)} take graphs with one type of nodes, and "
            f"{store.name} has {len(store.schema.node_axes)} types: give your own model, --model "
            "MODULE:NAME"
        )
    loss, outputs = loss_of(getattr(args, "loss", None), store, getattr(args, "task", "auto"))
    if model is None:
        model = model_of(args, store, outputs)
        require_trainable(model, args.model)
    device, like = getattr(args, "device", "cpu"), getattr(args, "like", "cuda")
    model.to(device)
    convert(model, kernels=args.kernels)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    compiled = getattr(args, "compiled", False)
    how: dict[str, Any] = {"like": like, "compiled": compiled}
    if device == "cuda":
        how = {"reader": "cuda"}
    return partial(
        probe,
        model,
        store,
        loss=loss,
        optimizer=kinds[args.optimizer](model.parameters(), lr=1e-3),
        form=getattr(args, "form", "auto"),
        autocast=torch.bfloat16 if args.autocast else None,
        accumulate=args.accumulate,
        target=getattr(args, "gpu", "h100"),
        path=getattr(args, "path", "recorded"),
        **how,
    )
