"""What the site needs of the library while it is built: the help of the command line, and names in
docstrings without the marks that editors read."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):<code>~?(?:[\w.]*\.)?(\w+)</code>")
MARK = "<!-- commands -->"


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands, by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def help_of_commands() -> str:
    """Every command's own help, under a heading each."""
    from staticgraph.cli import parser

    os.environ["COLUMNS"] = "96"  # what argparse wraps at, on any terminal
    parts = [
        f"## staticgraph {name}\n\n```text\n{one.format_help().rstrip()}\n```\n"
        for name, one in commands(parser()).items()
    ]
    return "\n".join(parts)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return markdown.replace(MARK, help_of_commands()) if MARK in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs for each page, docstrings included."""
    return ROLE.sub(r"<code>\1</code>", html)
