"""The parsers of the command line: the layout of their help, and their error messages.

argparse prints the usage of a command, half a page, before the one line that matters. Here an error
is only that line; for a mistyped word, it ends with the most similar valid one.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any, NoReturn

from staticgraph.text.nearest import or_nearest

# The exit status of an error that the user can correct.
FAILED = 2
# The largest column at which help texts begin: after the longest option with its value.
HELP_COLUMN = 28


class Help(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps the lines of examples and fills other paragraphs to the width."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"max_help_position": HELP_COLUMN, **options})

    def add_argument(self, action: argparse.Action) -> None:
        """Adds the indentation of command names, which argparse omits, so that the longest name
        fits."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        """The last word of an option: ``SIZE`` for ``--batch-size``."""
        return action.dest.upper().rpartition("_")[2]

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wraps lines without breaking at the hyphens of a name such as ``reduce-overhead``."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fills paragraphs to the width, except those with an indented line, which are examples."""
        as_it_stands, filled = super()._fill_text, argparse.HelpFormatter._fill_text
        return "\n\n".join(
            as_it_stands(paragraph, width, indent)
            if "\n " in paragraph
            else filled(self, paragraph, width, indent)
            for paragraph in text.strip("\n").split("\n\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage, which ``--help`` prints."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "formatter_class": Help})

    def error(self, message: str) -> NoReturn:
        """Exits with a one-line message and status 2."""
        self.exit(FAILED, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def unknown(self, words: list[str]) -> NoReturn:
        """Exits because of unrecognized words, with a suggestion for the first option."""
        option = next((word for word in words if word.startswith("-")), "")
        meant = or_nearest(option.partition("=")[0], self._option_string_actions) if option else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{meant}")

    def nothing(self) -> NoReturn:
        """Exits with the help, since no command was given."""
        self.print_help(sys.stderr)
        self.exit(FAILED)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Like argparse's method, with a message in the style of :mod:`staticgraph.cli.values`."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        said = f"{value!r}: give one of {', '.join(choices)}{or_nearest(str(value), choices)}"
        raise argparse.ArgumentError(action, said)
