"""``staticgraph report``: the report of a finished run, also as one self-contained HTML page.

The plots of the page are those of the run's picture, as SVG within it, so that it can be sent,
archived and opened anywhere, and its text can be searched; no script, font or style is loaded.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from staticgraph.files import atomic
from staticgraph.files.document import to_json
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.table import as_preformatted, table
from staticgraph.training.config import PAGE, STEPS
from staticgraph.training.options import FOLDER, OUTPUT_FILE

if TYPE_CHECKING:
    from staticgraph.training.report import TrainReport

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
       max-width: 68rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
pre { overflow-x: auto; font-size: .85rem; }
svg { max-width: 100%; height: auto; } .warn { color: #a40000; font-weight: 600; }
"""
MEMORY = {
    "parameters_bytes": "parameters",
    "optimizer_bytes": "optimizer state",
    "graphs_bytes": "graphs",
    "host_peak_bytes": "host memory at its peak, whole process",
    "device_peak_bytes": "device memory at its peak, whole process",
}


def run(
    folder: Annotated[Path, FOLDER, Parameter(name="DIR")],
    /,
    *,
    html: Annotated[Path | None, OUTPUT_FILE] = None,
    json: bool = False,
) -> None:
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
        path = folder / PAGE if html == Path(PAGE) else html
        atomic.write_text(path, page_of(report, folder))
        print(f"page: {path}", file=sys.stderr)


def page_of(report: TrainReport, folder: Path) -> str:
    """The page of a run as HTML, from its report and its folder.

    Raises:
        ValueError: the file of steps has none, or cannot be read.
    """
    from staticgraph.plans.plan import BucketPlan
    from staticgraph.training import plots
    from staticgraph.training.report import read_steps

    try:
        steps = read_steps(folder / STEPS)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / STEPS} is not a list of steps that this version reads ({error}); "
            f"staticgraph train --resume --out {folder} writes it again from the checkpoint"
        ) from error
    if not steps:
        raise ValueError(f"{folder / STEPS} has no steps: there is nothing to draw")
    capacities = BucketPlan.load(folder / "plan.json").capacities
    title = escape(f"{report.config['model']} on {report.data['name']}")
    curves = "<p>The curves were left out: matplotlib is not installed.</p>"
    if importlib.util.find_spec("matplotlib") is not None:
        curves = plots.svg_of(plots.draw_run(report, steps, capacities))
    known = {
        what: human_bytes(count)
        for name, what in MEMORY.items()
        if (count := report.memory.get(name)) is not None
    }
    warnings = "".join(f'<p class="warn">{escape(line)}</p>' for line in report.warnings)
    sections = {
        "Learning, and filling of the fixed shapes": f"<div>{curves}</div>",
        "Choices and results": as_preformatted(report),
        "Memory": _table({**known, "graphs are": report.data.get("place", "-")}),
        "Settings": _table(report.config),
        "Versions": _table(report.runner.versions),
    }
    body = "\n".join(f"<h2>{heading}</h2>\n{part}" for heading, part in sections.items())
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
{warnings}
{body}
</body></html>
"""


def _table(values: Mapping[str, Any]) -> str:
    rows = [(name, "-" if value is None else value) for name, value in values.items()]
    return as_preformatted(table(("what", "value"), rows, width=10_000))  # it is scrolled
