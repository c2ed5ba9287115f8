"""``staticgraph bench --count-kernels``: counts a training step's operations and launches."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from staticgraph.cli import values
from staticgraph.cli.data_options import add_data, open_data
from staticgraph.cli.loading import look_for
from staticgraph.cli.model_options import check_heads
from staticgraph.files.json_text import to_json
from staticgraph.text.progress import waiting

EXAMPLE = """\
example:
  staticgraph bench --count-kernels --data examples/data/hiv.npz \\
      --model gine --layers 5 --hidden 300 --batch-size 32
"""


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "bench",
        help="count the operations and launches of a training step",
        description="Count what a training step gives a GPU, three ways: operations of plain PyG, "
        "and launches of the default plan's step compiled for a GPU that you do not have, of stock "
        "layers and with kernels. Needs no GPU; compiling takes a minute or more.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "--count-kernels", action="store_true", required=True, help="count kernels; required"
    )
    add_data(parser, required=True)
    parser.add_argument(
        "--model", choices=values.MODELS, default="gine",
        help="a model of the zoo (default: gine)",
    )  # fmt: skip
    parser.add_argument(
        "--layers", type=values.whole(1, values.MOST_LAYERS), default=5,
        help="number of convolutions (default: 5)",
    )  # fmt: skip
    width = values.whole(1, values.WIDEST)
    parser.add_argument(
        "--hidden", type=width, default=300, help="width of every layer (default: 300)"
    )
    parser.add_argument("--heads", type=width, default=4, help="attention heads (default: 4)")
    parser.add_argument(
        "--batch-size", type=values.whole(), default=32, help="graphs per batch (default: 32)"
    )
    parser.add_argument("--autocast", choices=("bfloat16", "float16"), help="mixed precision")
    parser.add_argument(
        "--for",
        dest="gpu",
        choices=("h100", "h200", "a100", "l4"),
        default="h100",
        help="the GPU to compile for (default: h100)",
    )
    parser.add_argument(
        "--eager",
        action="store_true",
        help="compile nothing: count operations in eager mode only, for static batches too",
    )
    parser.add_argument(
        "--operators", action="store_true", help="also list eager operations by name"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Counts and prints."""
    check_heads(args, args.model, args.hidden, args.heads)
    look_for(args.data, args.target, model=args.model)
    import torch

    from staticgraph import models
    from staticgraph.dryrun import baseline
    from staticgraph.errors import DryRunUnavailable
    from staticgraph.plans.choose import plan_buckets

    store = open_data(args)
    plan = plan_buckets(store, batch_size=min(args.batch_size, len(store)))
    dtype = None if args.autocast is None else getattr(torch, args.autocast)

    def model() -> torch.nn.Module:
        """A new model, each time with the same initial weights."""
        torch.manual_seed(0)
        return models.build(
            args.model, store, hidden=args.hidden, layers=args.layers, heads=args.heads
        )

    eager = baseline.EAGER if args.eager or args.operators else baseline.EAGER[:1]
    with waiting("counting operations in eager mode"):
        found = {name: baseline.dispatched(name, model(), store, plan, dtype) for name in eager}
    columns = [baseline.operations_column(name, counted) for name, counted in found.items()]
    label = ""
    if not args.eager:
        try:
            for kernels in (False, True):
                what = "with kernels" if kernels else "of stock layers"
                with waiting(f"compiling the step {what} for {args.gpu}"):
                    column, label = baseline.launched(model(), plan, args.gpu, kernels, dtype)
                columns.append(column)
        except DryRunUnavailable as error:
            print(f"skipped what is compiled: {error}", file=sys.stderr)
    if args.json:
        print(to_json(_document(args, plan, columns, found, label)))
        return 0
    precision = f", {args.autocast}" if args.autocast else ""
    print(
        f"{args.model} {args.layers}x{args.hidden}, batch {args.batch_size}{precision}, "
        f"{plan.capacities[0]}: one training step"
    )
    print(_table(columns))
    print("operations: dispatched in eager mode, views and allocations left out")
    if label:
        print(f"launches: {label}")
    if args.operators:
        _print_operators(found)
    return 0


def _table(columns: list[Any]) -> str:
    """The table: one row per phase, one column per way, and shares of the compiled stock step."""
    from staticgraph.dryrun.baseline import STOCK
    from staticgraph.dryrun.operations import PARTS
    from staticgraph.text.table import table

    rows: list[list[Any]] = [[part, *(column.parts[part] for column in columns)] for part in PARTS]
    rows.append(["step", *(column.step for column in columns)])
    stock = next((column.step for column in columns if column.name == STOCK), None)
    if stock:
        rows.append([f"of {STOCK}", *(f"{column.step / stock:.2f}" for column in columns)])
    return table(["", *(f"{column.name}, {column.unit}" for column in columns)], rows)


def _document(
    args: argparse.Namespace, plan: Any, columns: list[Any], found: dict[str, Any], label: str
) -> dict[str, Any]:
    """The output of ``--json``: the table, and the setting that it was made with."""
    import datetime

    from staticgraph.files.versions import STEPS, versions

    document: dict[str, Any] = {
        column.name: {
            **column.parts,
            "total": column.step,
            "unit": column.unit,
            **({"kinds": column.kinds} if column.kinds else {}),
        }
        for column in columns
    }
    for name, counted in found.items():
        document[name] |= {
            "operators": counted.counts,
            "launches": counted.launches,
            "host_reads": counted.host_reads,
        }
    document["setting"] = {
        "model": f"{args.model} {args.layers}x{args.hidden}",
        "data": args.data,
        "batch_size": args.batch_size,
        "autocast": args.autocast,
        "capacity": str(plan.capacities[0]),
        "label": label,
        "versions": versions(STEPS),
        "date": datetime.date.today().isoformat(),
    }
    return document


def _print_operators(found: dict[str, Any]) -> None:
    from staticgraph.dryrun.operations import PARTS
    from staticgraph.text.table import table

    for name, counted in found.items():
        print(f"\n{name}")
        lines = [
            [operator, *(counted.counts[part][operator] for part in PARTS)]
            for operator in sorted({key for c in counted.counts.values() for key in c})
        ]
        print(table(["operator", *PARTS], lines))
