"""Runs the command line and returns its exit status, as a shell sees it."""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph import cli


def status_of(argv: Sequence[str]) -> int:
    """Runs a command in this process and returns its exit status."""
    try:
        return cli.main(list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)
