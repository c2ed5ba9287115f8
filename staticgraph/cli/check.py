"""``staticgraph check``: whether a model can run with fixed shapes, and what prevents it."""

from __future__ import annotations

import argparse
from typing import Any

from staticgraph.cli import check_for, values
from staticgraph.cli.data_options import add_data, open_data
from staticgraph.cli.loading import look_for
from staticgraph.files.json_text import to_json
from staticgraph.text.progress import waiting

NOT_STATIC = 1
EXAMPLE = """\
examples:
  staticgraph check --model mymodule:build --data examples/data/esol.npz
  staticgraph check --model mymodule:Net --data tu:PROTEINS --batch-size 64 --json
  staticgraph check --for h100 --model mymodule:build --data examples/data/esol.npz --kernels

The model is what build() returns, or build(store) where it takes an argument. The exit status is 1
where something prevents it.
"""


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "check",
        help="see whether a model can run in fixed shapes",
        description="Run a model once on a padded batch, name what cannot be recorded, and list "
        "what is rewritten to operators of this library, by the model's own lines.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "--model",
        required=True,
        type=values.model,
        metavar="MODEL",
        help=f"MODULE:NAME of a function that builds it, or one of {', '.join(values.MODELS)}",
    )
    add_data(parser, required=True)
    parser.add_argument(
        "--batch-size",
        type=values.whole(),
        default=32,
        metavar="B",
        help="graphs per batch (default: 32)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    check_for.register(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Prints the report; returns 0 if the model can run with fixed shapes."""
    look_for(args.data, args.target, model=args.model, loss=args.loss)
    if args.gpu and check_for.is_unavailable():
        return check_for.UNAVAILABLE
    from staticgraph.checking.check import check
    from staticgraph.cli.reports.rewrites import RewritesReport
    from staticgraph.models.named import built_without_data, made
    from staticgraph.plans.choose import plan_buckets
    from staticgraph.steps.computation.model_setup import Subject
    from staticgraph.training.task_loss import named_loss

    early = built_without_data(args.model)
    store = open_data(args)
    plan = plan_buckets(store, batch_size=min(args.batch_size, len(store)))
    model = made(args.model, store) if early is None else early
    loss = named_loss(args.loss) if args.loss else None
    subject = Subject.of(model, loss=loss, differentiable=args.differentiable)
    with waiting("running the model on one batch, with and without padding, and capturing it"):
        report = check(subject, plan, store)
    if args.gpu:
        return check_for.run(args, report)
    if report.ran:
        with waiting("looking for what is rewritten"):
            rewrites = RewritesReport.of(model, plan, store)
    else:
        rewrites = RewritesReport(note=f"not looked for, since {report.parity_note}")
    if args.json:
        print(to_json({**report.to_dict(), "rewrites": rewrites.to_dict()}))
    else:
        print(f"{report}\n\n{rewrites}")
    return 0 if report.ok else NOT_STATIC
