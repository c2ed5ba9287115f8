"""The command line as a shell sees it: an exit status, however it came about."""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph import cli


def status_of(argv: Sequence[str]) -> int:
    """The exit status of a command, run in this process."""
    try:
        return cli.main(list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)
