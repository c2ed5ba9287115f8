"""Whether a path leads to something."""

from __future__ import annotations

from pathlib import Path


def is_there(path: Path) -> bool:
    """Whether something has this path.

    :meth:`pathlib.Path.exists` is silent from Python 3.14 on where the system cannot say.

    Raises:
        OSError: a part of it is too long, may not be looked into, or links to itself.
        ValueError: no system takes such a name.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
