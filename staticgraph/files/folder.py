"""Atomic replacement of folders, which never deletes files of anyone else.

Two things must not happen when a folder is rewritten: a kill must not leave neither the old folder
nor the new one, and files that are not part of it must not be deleted. The new folder is therefore
written next to the target and made durable; then the old one is moved aside, the new one is moved
in, and only then is the old one removed. A kill between the two moves leaves the old folder under
its scratch name, and :func:`repair` restores it at the next opening or writing. A folder is
replaced only if this was requested, its manifest says that it is of the same kind, and it holds no
files other than those listed there. There is no lock: if two processes write the same folder at
once, one gets an error.
"""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staticgraph.files import document, scratch
from staticgraph.files.atomic import sync

# A process spends microseconds between the two moves; after this long it must be stuck.
PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder.

    Attributes:
        noun: its name in messages.
        format: the ``format`` in its manifest.
        manifest: the file name of the manifest.
        files: returns the names of the other files, given the manifest.
    """

    noun: str
    format: str
    manifest: str
    files: Callable[[Mapping[str, Any]], Iterable[str]]

    def is_that_of(self, folder: Path) -> bool:
        """Returns whether a folder's manifest says that it is of this kind, in any version."""
        try:
            return document.read(folder / self.manifest)["format"] == self.format
        except (OSError, *document.NOT_THERE):
            return False


@contextmanager
def replacing(folder: str | Path, kind: Kind, overwrite: bool = False) -> Iterator[Path]:
    """Creates an empty folder to write to, which replaces ``folder`` when the block ends.

    Raises:
        FileExistsError: if the target holds something that must not be replaced; the message names
            it.
    """
    target = Path(os.path.realpath(Path(folder).expanduser()))
    target.parent.mkdir(parents=True, exist_ok=True)
    repair(target)
    scratch.clean(target)
    require_replaceable(target, kind, overwrite)
    new = scratch.beside(target, "part")
    new.mkdir()
    try:
        yield new
        for path in new.iterdir():
            sync(path)
        sync(new)
        require_replaceable(target, kind, overwrite)
        exchange(new, target)
    except BaseException:
        scratch.remove(new)
        raise


def require_replaceable(target: Path, kind: Kind, overwrite: bool) -> None:
    """Rejects a target unless it is missing, empty, or a folder of this kind that may be replaced.

    Raises:
        FileExistsError: if it must not be replaced; the message names what it holds.
    """
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise FileExistsError(f"{target} exists and is not a {kind.noun}; choose another folder")
    names = sorted(path.name for path in target.iterdir())
    if not names:
        return
    not_ours = f"{target} exists and is not a {kind.noun}"
    if kind.manifest not in names:
        raise FileExistsError(
            f"{not_ours}: it holds {names[0]!r} and no {kind.manifest}; choose another folder"
        )
    try:
        values = document.read(target / kind.manifest)
        format_name, files = values.get("format"), {kind.manifest, *kind.files(values)}
    except (OSError, *document.NOT_THERE):
        format_name, files = None, set[str]()
    if format_name != kind.format:
        raise FileExistsError(
            f"{not_ours}: its {kind.manifest} says {format_name!r}, not {kind.format!r}; choose "
            "another folder, or remove it yourself"
        )
    require_only_files(target, files, kind.noun)
    if not overwrite:
        raise FileExistsError(
            f"{target} holds a {kind.noun} already: replace it with overwrite=True (--overwrite of "
            "a command), or choose another folder"
        )


def require_only_files(folder: Path, files: Collection[str], noun: str) -> None:
    """Rejects a folder that holds more than these files, since it is about to be removed.

    Raises:
        FileExistsError: if it does; the message names what would be lost.
    """
    foreign = sorted(
        path.name for path in folder.iterdir() if path.name not in files or not path.is_file()
    )
    if foreign:
        raise FileExistsError(
            f"{folder} is a {noun}, but {', '.join(map(repr, foreign[:3]))} in it is not part of "
            "it and would be lost: move it elsewhere, or choose another folder"
        )


def repair(folder: str | Path) -> None:
    """Restores a folder that was moved aside by a process killed before it moved the new one in."""
    target = Path(os.path.realpath(Path(folder).expanduser()))
    if target.exists() or not (aside := list(scratch.find_beside(target, "old"))):
        return
    deadline = time.monotonic() + PATIENCE_S
    while not all(map(scratch.abandoned, aside)) and time.monotonic() < deadline:
        time.sleep(0.001)
        if target.exists():
            return
    # There is at most one, unless the folder itself was removed in between; take the last one
    # moved.
    try:
        os.rename(max(aside, key=lambda path: path.stat().st_ctime_ns), target)
    except OSError:
        if target.exists():  # another process was faster
            return
        raise
    sync(target.parent)
    warnings.warn(
        f"{target} was being replaced when its process ended; the previous one was put back",
        stacklevel=3,
    )


def exchange(new: Path, target: Path) -> None:
    """Moves the new folder to the target; the old one is removed afterwards.

    Raises:
        FileExistsError: if another process wrote the target in the meantime.
    """
    old = None
    if target.exists() and any(target.iterdir()):
        old = scratch.beside(target, "old")
        os.rename(target, old)
    try:
        os.rename(new, target)
    except BaseException as error:
        if old is not None and not target.exists():
            os.rename(old, target)
        elif old is not None:
            scratch.remove(old)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(
                f"{target} was written by another process meanwhile, which is kept"
            ) from error
        raise
    try:
        sync(target.parent)
    finally:
        if old is not None:
            scratch.remove(old)
