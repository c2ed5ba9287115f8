"""The text of ``--help``.

cyclopts reads the options and their descriptions. The text is put together here, since cyclopts
prints through rich, whose import takes longer than all the rest, and takes ``*`` for emphasis.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Sequence
from typing import get_args

from cyclopts import App
from cyclopts.argument import Argument
from cyclopts.group import sort_groups

HELP = ("--help, -h", "Display this message and exit")


def help_of_commands(summaries: Sequence[tuple[str, str]]) -> str:
    """The text of ``staticgraph --help``, given each command with a line about it."""
    options = [HELP, ("--version", "Display application version")]
    return (
        "staticgraph COMMAND\n\nTrain graph neural networks in a few fixed shapes.\n\n"
        f"{_panel('Commands', summaries)}\n\n{_panel('Options', options)}\n\n\n"
        "Start with: staticgraph try --data esol --model gine"
    )


def help_of_command(app: App) -> str:
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
