"""Atomic file writes: after a crash, a file is either completely new or unchanged.

The new contents are written to a scratch file next to the target, made durable, and renamed to the
target. A full disk or a kill leaves the old file; a kill also leaves the scratch file, which the
next write of the same target removes. Readers need no lock: they see the old file or the new one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from staticgraph.files import scratch


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


@contextmanager
def writing(path: str | Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Opens a file for writing that becomes ``path`` when the block ends without an exception.

    A symbolic link is followed. A path that is not a regular file (a pipe, ``/dev/stdout``) is
    written to directly.

    Args:
        path: the file's path; its folder must exist.
        mode: its permissions; None keeps those of the existing file, or uses the umask's default.

    Raises:
        OSError: before the block runs, if the path cannot be written to.
    """
    target = Path(os.path.realpath(Path(path).expanduser()))
    if is_there(target) and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    scratch.clean(target)
    part = scratch.beside(target, "part")
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    try:
        descriptor = os.open(part, flags, 0o666 if mode is None else mode)
    except OSError as error:  # name the requested path, not the scratch file
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            if mode is None and target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a write does not name its file
            error.filename = str(target)
        raise
    sync(target.parent)


def write_bytes(path: str | Path, contents: bytes, mode: int | None = None) -> None:
    """Writes a file whole or not at all."""
    with writing(path, mode) as file:
        file.write(contents)


def write_text(path: str | Path, text: str) -> None:
    """Writes a UTF-8 text file whole or not at all."""
    write_bytes(path, text.encode())


def save_figure(path: str | Path, figure: Any, dpi: int) -> None:
    """Writes a matplotlib figure, in the format given by the file's suffix (PNG if it has none)."""
    with writing(path) as file:
        figure.savefig(file, dpi=dpi, format=Path(path).suffix[1:] or "png")


def sync(path: Path) -> None:
    """Makes a file durable, or the entries of a folder, on file systems that support it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
