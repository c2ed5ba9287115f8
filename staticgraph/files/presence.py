"""Tests whether a path exists."""

from __future__ import annotations

from pathlib import Path


def is_there(path: Path) -> bool:
    """Returns whether a path exists.

    Unlike this, :meth:`pathlib.Path.exists` returns False from Python 3.14 on if the system cannot
    tell.

    Raises:
        OSError: if a part of the path is too long, is not accessible, or is a link to itself.
        ValueError: if no system accepts such a name.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
