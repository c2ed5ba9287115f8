"""A file that is there whole or as it was before, whatever happens while it is written.

The new contents go to a scratch file next to the target, are made durable, and take the target's
name in one move. A full disk or a kill leaves the old file; a kill leaves the scratch file too,
which the next write of the same target removes. Readers need no lock: they see one or the other.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from staticgraph.files import scratch
from staticgraph.files.presence import is_there


@contextmanager
def writing(path: str | Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file to write to, which becomes ``path`` when the block ends without an exception.

    A link is followed. What is not a regular file (a pipe, ``/dev/stdout``) is written to directly.

    Args:
        path: of the file; its folder must exist.
        mode: its permissions; those that it had, or what the umask gives, where None.

    Raises:
        OSError: before the block, where the path cannot be written to.
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
    except OSError as error:  # named after what was asked for, not after the scratch file
        raise type(error)(error.errno, error.strerror, str(target)) from None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            if mode is None and target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write_bytes(path: str | Path, contents: bytes, mode: int | None = None) -> None:
    """Writes a file whole or not at all."""
    with writing(path, mode) as file:
        file.write(contents)


def write_text(path: str | Path, text: str) -> None:
    """Writes a file of UTF-8 whole or not at all."""
    write_bytes(path, text.encode())


def save_figure(path: str | Path, figure: Any, dpi: int) -> None:
    """Writes a figure of matplotlib, in the format of the name's ending."""
    kind = Path(path).suffix.removeprefix(".") or "png"
    with writing(path) as file:
        figure.savefig(file, dpi=dpi, format=kind)


def sync_folder(folder: Path) -> None:
    """Makes names in a folder durable, on file systems that can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Makes a file that others wrote durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
