"""A lock that allows one process per run folder.

Two runs in one folder would overwrite each other's checkpoints. The lock is an operating-system
lock on a file that names its owner: it ends with the process, however that ends, and a forked child
does not keep it. On file systems without locks (some network ones), nothing is locked.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from staticgraph.errors import FolderInUse

NAME = ".lock"
# A lock whose owner removes its file at this moment is tried again.
RETRIED_S = 0.2
UNKNOWN = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def folder_lock(folder: str | Path) -> Iterator[None]:
    """Locks a folder while the block runs.

    The folder is created if missing; one created here is removed if it is empty at the end.

    Raises:
        FolderInUse: if another run holds the lock; the message names the process.
    """
    root = Path(folder)
    path, is_new = root / NAME, not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=RETRIED_S, fallback_to_soft=False)
    try:
        lock.acquire()
        path.write_text(f"{os.getpid()} {platform.node()}\n")
    except Timeout:
        raise FolderInUse(
            f"{root} is in use by {_owner(path)}, which trains into it: wait for it, stop it, or "
            "choose another --out"
        ) from None
    except OSError as error:
        if error.errno not in UNKNOWN:
            raise
    try:
        yield
    finally:
        # Removed while the lock is held, so that a process that has just opened it notices.
        path.unlink(missing_ok=True)
        lock.release()
        if is_new and not any(root.iterdir()):
            root.rmdir()


def _owner(path: Path) -> str:
    words = path.read_text(errors="replace").split() if path.exists() else []
    if len(words) != 2:
        return "another process"
    where = "" if words[1] == platform.node() else f" on {words[1]}"
    return f"process {words[0]}{where}"
