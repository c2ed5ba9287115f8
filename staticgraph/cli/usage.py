"""Parsers of the command line: their help, and what they say of a word that they do not know.

argparse prints the usage of a command, which is half a page, before the one line that matters. Here
an error is that line; where a word was mistyped it ends with the one that was meant.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any, NoReturn

from staticgraph.text.nearest import or_nearest

# The exit status of what a user can correct.
FAILED = 2
# Where help begins in a line, at the latest: behind the longest option with its value.
HELP_COLUMN = 28


class Help(argparse.RawDescriptionHelpFormatter):
    """Examples as they stand; paragraphs filled to the width."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"max_help_position": HELP_COLUMN, **options})

    def add_argument(self, action: argparse.Action) -> None:
        """argparse forgets that the names of commands are indented, and cuts the longest off."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        """``SIZE`` of ``--batch-size``."""
        return action.dest.upper().rpartition("_")[2]

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Not at the hyphens of a name, such as ``reduce-overhead``."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs to the width; one with an indented line, of examples, as it stands."""
        as_it_stands, filled = super()._fill_text, argparse.HelpFormatter._fill_text
        return "\n\n".join(
            as_it_stands(paragraph, width, indent)
            if "\n " in paragraph
            else filled(self, paragraph, width, indent)
            for paragraph in text.strip("\n").split("\n\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; the usage is a page away, with ``--help``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "formatter_class": Help})

    def error(self, message: str) -> NoReturn:
        """Ends with one line and exit status 2."""
        self.exit(FAILED, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def unknown(self, words: list[str]) -> NoReturn:
        """Ends for words that no option takes, with the option that the first may have meant."""
        option = next((word for word in words if word.startswith("-")), "")
        meant = or_nearest(option.partition("=")[0], self._option_string_actions) if option else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{meant}")

    def nothing(self) -> NoReturn:
        """Ends with the help: nothing was asked."""
        self.print_help(sys.stderr)
        self.exit(FAILED)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse has it, in the words of :mod:`staticgraph.cli.values`."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(each) for each in action.choices]
        said = f"{value!r}: give one of {', '.join(choices)}{or_nearest(str(value), choices)}"
        raise argparse.ArgumentError(action, said)
