"""``staticgraph report``: the report of a finished run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staticgraph.cli import values
from staticgraph.files import atomic
from staticgraph.files.json_text import to_json

if TYPE_CHECKING:
    from staticgraph.training.report import TrainReport

PAGE = Path("report.html")  # in the folder of the run
EXAMPLE = """\
examples:
  staticgraph report runs/demo
  staticgraph report runs/demo --html
  staticgraph report runs/demo --json | jq '.epochs[-1].val_metric'
"""


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="print the report of a finished training run",
        description="Print the report of a finished training run.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "folder", type=values.folder, metavar="DIR", help="folder of the run (its --out)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--html",
        type=values.file_to_write,
        nargs="?",
        const=PAGE,
        metavar="FILE",
        help="also write one page with curves, filling, memory and choices, which needs no other "
        "file (report.html in the run's folder if no name is given)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report."""
    from staticgraph.training.report import TrainReport

    report = TrainReport.load(args.folder)
    print(to_json(report.to_dict()) if args.json else report)
    if args.html:
        path = args.folder / PAGE if args.html == PAGE else args.html
        atomic.write_text(path, _page(report, args.folder))
        print(f"page: {path}", file=sys.stderr)
    return 0


def _page(report: TrainReport, folder: Path) -> str:
    """The HTML page of a run, from its report, its steps and its plan."""
    from staticgraph.cli.reports.page import page_of
    from staticgraph.plans.plan import BucketPlan
    from staticgraph.training.history import read_steps
    from staticgraph.training.report import STEPS

    try:
        steps = read_steps(folder / STEPS)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / STEPS} is not a list of steps that this version reads ({error}); "
            f"staticgraph train --resume --out {folder} writes it again from the checkpoint"
        ) from error
    if not steps:
        raise ValueError(f"{folder / STEPS} has no steps: there is nothing to draw")
    return page_of(report, steps, BucketPlan.load(folder / "plan.json").capacities)
