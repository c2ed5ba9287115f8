"""A lock that allows one process per run folder.

Two runs in one folder would overwrite each other's checkpoints. A lock by a file's existence
outlives a killed process, and guessing whether its owner is still alive is a race. The lock is
therefore an operating-system lock (``flock``) on a file that names its owner: it ends with the
process, however that ends, and a lock file without a holder is taken over. Forked children release
it, since a worker that outlives a killed run would otherwise keep it. On file systems without locks
(some network ones), nothing is locked.
"""

from __future__ import annotations

import errno
import os
import platform
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from staticgraph.errors import FolderInUse

NAME = ".lock"
UNKNOWN = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class _Held:
    """An open, locked file, which a forked child closes."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor


_held: weakref.WeakSet[_Held] = weakref.WeakSet()


def _let_go() -> None:
    for held in list(_held):
        os.close(held.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def folder_lock(folder: str | Path) -> Iterator[None]:
    """Locks a folder while the block runs.

    The folder is created if missing; one created here is removed if it is empty at the end.

    Raises:
        FolderInUse: if another run holds the lock; the message names the process.
    """
    root = Path(folder)
    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    held = _acquire(root)
    _held.add(held)
    try:
        yield
    finally:
        # Removed while the lock is held, so that a process that has just opened it notices.
        (root / NAME).unlink(missing_ok=True)
        _held.discard(held)
        os.close(held.descriptor)
        if made and not any(root.iterdir()):
            root.rmdir()


def _acquire(root: Path) -> _Held:
    path = root / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _locked(descriptor):
                raise FolderInUse(
                    f"{root} is in use by {_owner(descriptor)}, which trains into it: wait for it, "
                    "stop it, or choose another --out"
                )
            if not _is_still(path, descriptor):
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {platform.node()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return _Held(descriptor)


def _locked(descriptor: int) -> bool:
    """Tries to take the lock; returns False if another process holds it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNKNOWN:
            raise
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Returns whether the path still refers to the open file; its owner may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str:
    words = os.pread(descriptor, 200, 0).decode(errors="replace").split()
    if len(words) != 2:
        return "another process"
    where = "" if words[1] == platform.node() else f" on {words[1]}"
    return f"process {words[0]}{where}"
