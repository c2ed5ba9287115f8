"""The options of a benchmark, declared by their defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def options_of(
    description: str | None, words: Sequence[str] | None = None, /, **defaults: Any
) -> Any:
    """Reads the command line; the result has an attribute per option.

    Args:
        description: the docstring of the script.
        words: those to read, if not all of the command line.
        **defaults: by name, with ``_`` for ``-``. False is a switch, a list takes several values of
            its first one's type (of text if it is empty), and a type is an option without default.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        elif isinstance(default, list | tuple):
            kind = type(default[0]) if default else str
            parser.add_argument(option, type=kind, nargs="*", default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args(words)
