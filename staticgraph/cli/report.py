"""``staticgraph report``: what a finished run says of itself."""

from __future__ import annotations

import argparse
from typing import Any

from staticgraph.cli import values
from staticgraph.files.json_text import to_json

EXAMPLE = """\
example:
  staticgraph report runs/demo
  staticgraph report runs/demo --json | jq '.epochs[-1].val_metric'
"""


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="print the report of a finished training run",
        description="Print the report of a finished training run.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=values.folder, metavar="DIR", help="the --out of the run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report."""
    from staticgraph.training.report import TrainReport

    report = TrainReport.load(args.folder)
    print(to_json(report.to_dict()) if args.json else report)
    return 0
