"""``staticgraph report``: the report of a finished run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from staticgraph.files import atomic
from staticgraph.files.document import to_json
from staticgraph.training.config import PAGE
from staticgraph.training.options import FOLDER, OUTPUT_FILE


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
        from staticgraph.cli.page import page_of

        path = folder / PAGE if html == Path(PAGE) else html
        atomic.write_text(path, page_of(report, folder))
        print(f"page: {path}", file=sys.stderr)
    return 0
