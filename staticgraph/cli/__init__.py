"""The command line: ``staticgraph plan | train | report`` and more.

A command is a module with ``register(subparsers)``, which describes it, and a function that runs
it, which imports what it needs only then: ``staticgraph --help`` must not wait for torch. Results
go to stdout (as JSON with ``--json``), progress to stderr. The exit status is 0; 1 where the answer
is no (a training diverged, a model is not static); 2 with one line for an error that a user can
correct, in a model of theirs too; anything else is a bug and shows its traceback.
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

# In the order of docs/cli.md: what a newcomer asks first.
COMMANDS = (
    *("versus", "check", "train", "report", "plan", "probe"),
    *("bench", "convert", "partition", "train_large", "serve"),
)
DIVERGED = 1
# What a shell expects of a program that Ctrl-C stopped: 128 + SIGINT; and of one whose reader went
# away, as that of `staticgraph ... | head` does: 128 + SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141


def _is_error(kind: type) -> bool:
    return kind.__module__ == errors.__name__ and issubclass(kind, Exception)


# Errors whose message is written for the user; the system's say which file and why.
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
    if unknown:  # told by the command's own parser, whose help has the options that there are
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
        # What torch's compiler says is a page, of which a user needs a line.
        text = failure_of(error, args) if of_compiling(error) else None
        if text is None and of_compiling(error) and os.environ.get(TRACEBACK):
            text = f"{error}\n{error.__context__}"
        text = text or _for_the_user(error) or failure_of(error, args)
        if text is None:
            raise
        print(f"staticgraph {args.command}: {text}", file=sys.stderr)
        return DIVERGED if isinstance(error, errors.Diverged) else FAILED


def parser() -> Parser:
    """The parser of all commands."""
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
    """The message, where it is one for the user. A ValueError or a TypeError is if our own code
    raised it; one that Python raises of a line of ours (a TypeError) is our fault."""
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
    """Whether a disk is full: as the system says it, as NumPy does without a number, or behind what
    torch says of a file that it could not end."""
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
    """Sends what is still to be written nowhere, or Python would complain of it when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
