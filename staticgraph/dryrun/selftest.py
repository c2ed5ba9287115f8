"""``python -m staticgraph.dryrun.selftest``: checks whether a dry run works here, or what broke.

It prints one line per stage. The exit status is 0 if all stages pass, 1 if one fails, and 2 where
the platform does not support dry runs.
"""

from __future__ import annotations

import sys
from typing import Any

from staticgraph.dryrun.ask import Child
from staticgraph.dryrun.guard import torch_version
from staticgraph.errors import DryRunBroken, DryRunUnavailable


def selftest(target: str = "h100", leave_out: str | None = None) -> list[dict[str, Any]]:
    """Runs the stages of the self-test.

    Returns:
        For each stage ``stage``, ``ok``, and on failure ``error``, ``where`` (the line of torch)
        and ``points`` (the symbols patched for it).

    Raises:
        DryRunBroken: torch lacks a symbol; the message names it.
        DryRunUnavailable: a dry run cannot work on this platform.
    """
    with Child(target, leave_out) as child:
        return child.stages()


def main(argv: list[str]) -> int:
    """Runs the self-test, prints its stages, and returns the exit status."""
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
