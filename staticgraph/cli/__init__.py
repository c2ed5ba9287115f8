"""The command line: ``staticgraph plan | train | report`` and more.

A command is a function. Its keywords, and the fields of the dataclasses it takes, are its options:
cyclopts reads types, ranges and defaults from them, and ``--help`` the descriptions. Modules import
torch only when they run, so that ``--help`` is quick.
Results go to stdout (as JSON with ``--json``), progress to stderr. The exit status is 0 for
success; 1 for a negative result (a training diverged, a model is not static); 2 with a one-line
message for an error that the user can correct, including errors in the user's model. Any other
error is a bug and shows its traceback.
"""

from __future__ import annotations

import inspect
import itertools
import os
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn, get_args

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, Token
from cyclopts.argument import Argument
from cyclopts.group import sort_groups

from staticgraph import __version__
from staticgraph.cli.refusals import OPTIONS_SET, USER_CODE, UsageError, message_of
from staticgraph.errors import Diverged
from staticgraph.text.how_many import or_nearest

# In the order of docs/cli.md, most useful to a new user first.
COMMANDS = {
    "try": ("versus:run", "compare this library with plain PyG on your data and model"),
    "check": ("check:run", "see whether a model can run in fixed shapes"),
    "train": ("train:run", "train a model on a data set in fixed shapes"),
    "report": ("report:run", "print the report of a finished training run"),
    "predict": ("predict:run", "write a trained model's predictions for a data set"),
    "plan": ("plan:run", "choose fixed shapes for a data set, or pack it at given limits"),
    "probe": ("probe:run", "find the memory of a step as a function of the batch"),
    "bench": ("bench:run", "count the operations and launches of a training step"),
    "convert": ("convert:convert", "write a data set as a store on disk"),
    "partition": ("convert:partition", "cut a graph larger than memory into partitions on disk"),
    "train-large": ("train_large:run", "train on one graph larger than memory"),
    "serve": ("serve:run", "answer requests for a trained model over HTTP"),
}
# The values of options whose value may be left out.
IMPLIED = {("probe", "--plot"): "memory.png", ("report", "--html"): "report.html"}
DIVERGED = 1
# The exit status of an error that the user can correct.
FAILED = 2
# The exit status of a program that Ctrl-C stopped, 128 + SIGINT, and of one whose output pipe was
# closed, as in `staticgraph ... | head`, 128 + SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141


def make_app(command: str) -> App:
    """The command as an app of cyclopts, which reads its words."""
    function, _ = COMMANDS[command]
    app = App(
        name=f"staticgraph {command}",
        help_flags=(),
        version_flags=(),
        default_parameter=Parameter(negative=(), allow_repeating=True),
        result_action="return_value",
        config=_complete_options,
    )
    app.default(resolve_name(f"staticgraph.cli.{function}"))
    return app


def _complete_options(app: App, commands: tuple[str, ...], arguments: Any) -> None:
    """Notes which options were given, and completes them from the settings of ``--config``.

    A run that is resumed has its data, so that none is required."""
    options = {argument.name: argument for argument in arguments}
    config = options.get("--config")
    if config is not None and config.tokens:
        _read_settings(config.tokens[-1].value, app, commands, arguments)
    OPTIONS_SET.clear()
    OPTIONS_SET.update(a.field_info.name for a in arguments if a.tokens)
    resume = options.get("--resume")
    if resume is not None and resume.tokens and not options["--data"].tokens:
        options["--data"].append(Token(keyword="--data", value="resumed", source="--resume"))


def _read_settings(path: str, app: App, commands: tuple[str, ...], arguments: Any) -> None:
    """Adds the settings of a TOML file to options that were not given.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not valid TOML, or has a setting twice (``batch-size``, ``batch_size``).
    """
    from cyclopts.config import Dict  # late, since --help reads no settings

    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file of settings (looked in {Path.cwd()}): give the "
            "config.toml of a run, or TOML with options by name, such as batch-size = 64"
        )
    try:
        settings = tomllib.loads(file.read_text())
    except ValueError as error:  # of TOML, or of Unicode
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    names = [key.replace("-", "_") for key in settings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{path}: {twice} is there twice, once as {twice.replace('_', '-')}")
    Dict(settings, use_commands_as_keys=False, source=path)(app, commands, arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status.

    Raises:
        SystemExit: after ``--help``, and for options that are not valid.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # Python would report another when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return PIPE_CLOSED


def _run(words: list[str]) -> int:
    command = words[0] if words and words[0] in COMMANDS else ""
    if not words or {"--help", "-h"} & set(words):
        text = _help_of_command(make_app(command)) if command else _help_of_commands()
        print(text, file=sys.stdout if words else sys.stderr)
        sys.exit(0 if words else FAILED)
    if "--version" in words:
        print(f"staticgraph {__version__}")
        sys.exit(0)
    program = f"staticgraph {command}".rstrip()
    if command == "":
        choices = f"give one of {', '.join(COMMANDS)}{or_nearest(words[0], COMMANDS)}"
        _refuse(program, f"{words[0]!r}: {choices}")
    USER_CODE.clear()
    try:
        run, bound, _ = make_app(command).parse_args(
            _with_implied(command, words[1:]), print_error=False, exit_on_error=False
        )
        return run(*bound.args, **bound.kwargs) or 0
    except CycloptsError as error:
        _refuse(program, _usage(error, command))
    except UsageError as error:
        _refuse(program, str(error))
    except KeyboardInterrupt as stop:
        print(f"staticgraph: {str(stop) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        text = message_of(error)
        if text is None:
            raise
        print(f"{program}: {text}", file=sys.stderr)
        return DIVERGED if isinstance(error, Diverged) else FAILED


def _with_implied(command: str, words: list[str]) -> list[str]:
    """The words with the values of options that need none (``--plot``, ``--html``)."""
    completed = []
    for word, following in itertools.pairwise([*words, "--"]):
        implied = IMPLIED.get((command, word))
        alone = implied is not None and following.startswith("-")
        completed.append(f"{word}={implied}" if alone else word)
    return completed


def _refuse(program: str, message: str) -> NoReturn:
    """Exits with a one-line message."""
    print(f"{program}: {message} (see {program} --help)", file=sys.stderr)
    sys.exit(FAILED)


def _usage(error: CycloptsError, command: str) -> str:
    """The one-line message for words, or settings of a file, that are no valid options."""
    argument, token = error.argument, getattr(error, "token", None)
    file = "" if token is None or token.source == "cli" else token.source
    error.verbose = False
    text = " ".join(str(error).split()).replace("Unused Tokens", "not understood")
    if isinstance(error, MissingArgumentError) and argument is not None:
        if argument.name not in {word.partition("=")[0] for word in error.root_input_tokens or ()}:
            but = ", but for --resume or a --config with it" if command == "train" else ""
            beside = (
                f"; not understood: {' '.join(unused)}" if (unused := error.unused_tokens) else ""
            )
            return f"the argument {argument.name} is required{but}{beside}"
    elif argument is not None and getattr(error, "msg", None):
        text = f"{argument.field_info.name if file else f'argument {argument.name}'}: {error.msg}"
    text = text[:1].lower() + text[1:].rstrip(".")
    return text if file in text else f"{file}: {text}"


# ---------------------------------------------------------------------- the text of --help

# cyclopts reads the options and their descriptions. The text is put together here, since cyclopts
# prints through rich, whose import takes longer than all the rest, and takes ``*`` for emphasis.
HELP = ("--help, -h", "Display this message and exit")


def _help_of_commands() -> str:
    """The text of ``staticgraph --help``."""
    summaries = [(name, summary) for name, (_, summary) in COMMANDS.items()]
    options = [HELP, ("--version", "Display application version")]
    return (
        "staticgraph COMMAND\n\nTrain graph neural networks in a few fixed shapes.\n\n"
        f"{_panel('Commands', summaries)}\n\n{_panel('Options', options)}\n\n\n"
        "Start with: staticgraph try --data esol --model gine"
    )


def _help_of_command(app: App) -> str:
    """The text of ``--help`` of a command: usage, description, and its options group by group."""
    arguments = app.assemble_argument_collection(parse_docstring=True).filter_by(show=True)
    usage = app.name[0]
    for argument in arguments:
        if argument.required and argument.name.startswith("-"):
            usage += f" {argument.name} {_placeholder(argument)}"
    usage += " [OPTIONS]"
    usage += "".join(f" {argument.name}" for argument in arguments if argument.index is not None)
    about, _, _ = (inspect.getdoc(app.default_command) or "").partition("\n\nArgs:")
    summary, *paragraphs = about.split("\n\n")
    groups, _ = sort_groups(arguments.groups, arguments.groups)
    panels = [
        _panel(group.name, list(map(_describe, arguments.filter_by(group=group))), group.help)
        for group in groups
    ]
    summary = textwrap.fill(summary, 100)
    return "\n\n".join((usage, summary, *paragraphs, *panels, _panel("Options", [HELP])))


def _describe(argument: Argument) -> tuple[str, str]:
    """The names of an option with the placeholder of its value, and its description with choices
    and default."""
    parameter = argument.parameter
    text = " ".join((parameter.help or "").split()).rstrip(".")
    if choices := argument.get_choices():
        text += f"; one of {', '.join(choices)}"
    default = str(argument.field_info.default)
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    if argument.required:
        text += " (required)"
    elif default not in ("False", "", "None", "()"):
        text += f" (default: {default})"
    if argument.index is not None:
        return argument.name, text
    return f"{', '.join(argument.names)} {_placeholder(argument)}".strip(), text


def _placeholder(argument: Argument) -> str:
    """What stands for the value of an option, such as INT; nothing for a switch."""
    if argument.parameter.metavar or argument.hint is bool:
        return argument.parameter.metavar or ""
    if argument.get_choices(force=True):
        return "CHOICE"
    kind, *_ = get_args(argument.hint) or (argument.hint,)
    return kind.__name__.upper()


def _panel(title: str, rows: Sequence[tuple[str, str]], description: str = "") -> str:
    """A group of options or commands: names to the left, descriptions to the right."""
    width = min(100, shutil.get_terminal_size().columns)
    indent = 2 + min(26, max(len(names) for names, _ in rows)) + 2
    fill = textwrap.TextWrapper(width, break_on_hyphens=False)
    lines = [f"{title}:"]
    fill.initial_indent = fill.subsequent_indent = "  "
    lines += fill.wrap(" ".join(description.split()))
    for names, text in rows:
        fits = len(names) + 4 <= indent
        lines += [] if fits else [f"  {names}"]
        fill.initial_indent = f"  {names}".ljust(indent) if fits else " " * indent
        fill.subsequent_indent = " " * indent
        lines += fill.wrap(text) or [fill.initial_indent.rstrip()]
    return "\n".join(lines)
