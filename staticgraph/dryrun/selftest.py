"""``python -m staticgraph.dryrun.selftest``: does a dry run work here, and if not, what broke?

Prints a line a stage. The exit status is 0 where all pass, 1 where one fails, 2 where the platform
cannot.
"""

from __future__ import annotations

import sys
from typing import Any

from staticgraph.dryrun.ask import Child
from staticgraph.dryrun.availability import torch_version
from staticgraph.errors import DryRunBroken, DryRunUnavailable


def selftest(target: str = "h100", leave_out: str | None = None) -> list[dict[str, Any]]:
    """The stages: ``stage``, ``ok``, and where not ok ``error``, ``where`` (the line of torch) and
    ``points`` (the symbols patched for it).

    Raises:
        DryRunBroken: torch lacks a symbol; the message names it. DryRunUnavailable: not on this
        platform.
    """
    with Child(target, leave_out) as child:
        return child.ask({"selftest": True})["stages"]


def main(argv: list[str]) -> int:
    """Prints the stages."""
    try:
        stages = selftest(*argv[:2])
    except DryRunUnavailable as error:
        print(f"skipped: {error}")
        return 2
    except DryRunBroken as error:
        print(f"broken: {error}")
        return 1
    print(f"torch {torch_version()}")
    for stage in stages:
        print(f"{'ok    ' if stage['ok'] else 'broken'}  {stage['stage']}")
        if not stage["ok"]:
            print(f"        {stage['error']}\n        at {stage['where']}")
            print(f"        patched for it: {', '.join(stage['points'])}")
    return 0 if all(stage["ok"] for stage in stages) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
