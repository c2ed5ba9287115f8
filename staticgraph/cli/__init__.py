"""The command line: ``staticgraph plan | train | report``.

A command is a module with ``register(subparsers)``, which describes it, and a function that runs
it, which imports what it needs only then: ``staticgraph --help`` must not wait for torch. Results
go to stdout (as JSON with ``--json``), progress to stderr. An error that a user can mend is one
line and exit status 2; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

from staticgraph import errors

COMMANDS = ("plan", "probe", "check", "train", "report", "bench", "partition", "train_large")
FAILED = 2
# What a shell expects of a program that Ctrl-C stopped: 128 + SIGINT.
INTERRUPTED = 130


def _is_error(kind: type) -> bool:
    return kind.__module__ == errors.__name__ and issubclass(kind, Exception)


# Errors whose message is written for the user.
KNOWN = (
    *(kind for kind in vars(errors).values() if isinstance(kind, type) and _is_error(kind)),
    FileNotFoundError,
    FileExistsError,
    PermissionError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status."""
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt as stop:
        print(f"staticgraph: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if not _is_for_the_user(error):
            raise
        print(f"staticgraph {args.command}: {error}", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="staticgraph",
        description="Train graph neural networks in a few fixed shapes.",
        epilog="Begin with: staticgraph train --data examples/data/esol.npz --model gine",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        if importlib.util.find_spec(f"staticgraph.cli.{name}") is None:
            continue
        importlib.import_module(f"staticgraph.cli.{name}").register(commands)
    return top


def _is_for_the_user(error: Exception) -> bool:
    """Whether the message is one of ours. A ValueError is if our own code raised it."""
    if isinstance(error, KNOWN):
        return True
    if not isinstance(error, ValueError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return raised_in.split(".")[0] == "staticgraph"
