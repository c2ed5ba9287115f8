"""``staticgraph report``: the report of a finished run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from staticgraph.files import atomic
from staticgraph.files.document import to_json
from staticgraph.training.options import FOLDER, OUTPUT_FILE

if TYPE_CHECKING:
    from staticgraph.training.report import TrainReport

PAGE = Path("report.html")  # in the folder of the run


def run(
    folder: Annotated[Path, FOLDER, Parameter(name="DIR")],
    /,
    *,
    html: Annotated[Path | None, OUTPUT_FILE] = None,
    json: bool = False,
) -> int:
    """Print the report of a finished training run.

    For example:
      staticgraph report runs/demo
      staticgraph report runs/demo --html
      staticgraph report runs/demo --json | jq '.epochs[-1].val_metric'

    Args:
        folder: folder of the run (its --out).
        html: also write one page with curves, filling, memory and choices, which needs no other
            file; report.html in the run's folder if no name is given.
        json: print JSON instead of tables.
    """
    from staticgraph.training.report import TrainReport

    report = TrainReport.load(folder)
    print(to_json(report.to_dict()) if json else report)
    if html is not None:
        path = folder / PAGE if html == PAGE else html
        atomic.write_text(path, _page(report, folder))
        print(f"page: {path}", file=sys.stderr)
    return 0


def _page(report: TrainReport, folder: Path) -> str:
    """The HTML page of a run, from its report, its steps and its plan."""
    from staticgraph.cli.page import page_of
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
