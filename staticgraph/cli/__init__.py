"""The command line: ``staticgraph plan | train | report`` and more.

A command is a module with ``register(subparsers)``, which adds its parser, and a function that runs
it and imports its dependencies only then, so that ``staticgraph --help`` does not import torch.
Results go to stdout (as JSON with ``--json``), progress to stderr. The exit status is 0 for
success; 1 for a negative result (a training diverged, a model is not static); 2 with a one-line
message for an error that the user can correct, including errors in the user's model. Any other
error is a bug and shows its traceback.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Sequence

from staticgraph import __version__, errors
from staticgraph.cli.compile_failures import of_compiling
from staticgraph.cli.model_failures import TRACEBACK, failure_of
from staticgraph.cli.usage import FAILED, Parser

# In the order of docs/cli.md, most useful to a new user first.
COMMANDS = (
    *("versus", "check", "train", "report", "plan", "probe"),
    *("bench", "convert", "partition", "train_large", "serve"),
)
DIVERGED = 1
# The exit status of a program that Ctrl-C stopped, 128 + SIGINT, and of one whose output pipe was
# closed, as in `staticgraph ... | head`, 128 + SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141


def _is_error(kind: type) -> bool:
    return kind.__module__ == errors.__name__ and issubclass(kind, Exception)


# Errors whose message is written for the user; those of the system name the file and the reason.
KNOWN = (
    *(kind for kind in vars(errors).values() if isinstance(kind, type) and _is_error(kind)),
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status."""
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()
        return PIPE_CLOSED


def _run(argv: Sequence[str] | None) -> int:
    top = parser()
    if not (sys.argv[1:] if argv is None else argv):
        top.nothing()
    args, unknown = top.parse_known_args(argv)
    if unknown:  # reported by the command's own parser, whose help lists its options
        commands = next(each.choices for each in top._actions if isinstance(each.choices, dict))
        commands[args.command].unknown(unknown)
    try:
        return args.run(args)
    except KeyboardInterrupt as stop:
        print(f"staticgraph: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        # The message of torch's compiler is a page long; the user needs one line of it.
        text = failure_of(error, args) if of_compiling(error) else None
        if text is None and of_compiling(error) and os.environ.get(TRACEBACK):
            text = f"{error}\n{error.__context__}"
        text = text or _for_the_user(error) or failure_of(error, args)
        if text is None:
            raise
        print(f"staticgraph {args.command}: {text}", file=sys.stderr)
        return DIVERGED if isinstance(error, errors.Diverged) else FAILED


def parser() -> Parser:
    """Builds the parser of all commands."""
    top = Parser(
        prog="staticgraph",
        description="Train graph neural networks in a few fixed shapes.",
        epilog="Start with: staticgraph try --data esol --model gine",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for name in COMMANDS:
        if importlib.util.find_spec(f"staticgraph.cli.{name}") is None:
            continue
        importlib.import_module(f"staticgraph.cli.{name}").register(commands)
    return top


def _for_the_user(error: Exception) -> str | None:
    """The message of an error if it is meant for the user, else None.

    A ValueError or TypeError is meant for the user if this library raised it; a TypeError that
    Python raised in a line of this library is a bug."""
    if _is_full(error):
        return "No space left on device: make room, or write to another place"
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, KNOWN):
        return str(error)
    if isinstance(error, MemoryError) or ("torch" in sys.modules and _is_out_of_memory(error)):
        first = str(error).splitlines()[0] if str(error) else "none is left"
        return f"out of memory ({first}): ask for smaller sizes or batches"
    if not isinstance(error, ValueError | TypeError):
        return None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    raised_in = trace.tb_frame.f_globals.get("__name__", "").split(".")[0]
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    stated = isinstance(error, ValueError) or line.lstrip().startswith("raise ")
    return str(error) if raised_in == "staticgraph" and stated else None


def _is_full(error: BaseException | None) -> bool:
    """Whether a disk is full: by the system's error number, by NumPy's message without one, or in
    the context of torch's error for an unfinished file."""
    while error is not None:
        if isinstance(error, OSError) and (
            error.errno in (errno.ENOSPC, errno.EDQUOT)
            or re.fullmatch(r"\d+ requested and \d+ written", str(error))
        ):
            return True
        error = error.__context__
    return False


def _is_out_of_memory(error: Exception) -> bool:
    from staticgraph.probing.out_of_memory import is_out_of_memory

    return is_out_of_memory(error)


def _abandon_output() -> None:
    """Redirects buffered output to the null device, or Python would report an error at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
