"""The options of a benchmark, declared by their defaults."""

from __future__ import annotations

import argparse
from typing import Any


def options_of(description: str | None, /, **defaults: Any) -> Any:
    """Reads the command line; the result has an attribute per option.

    Args:
        description: the docstring of the script.
        **defaults: by name, with ``_`` for ``-``. False is a switch, a list takes several values of
            its first one's type, a type is an option without default, and a tuple is an argument
            that is one of these.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(name, choices=default)
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        elif isinstance(default, list):
            parser.add_argument(option, type=type(default[0]), nargs="*", default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()
