"""A cache folder that only its owner can access, with a key to sign files.

The cached code is executed when it is read, so it must have been written by this user. The owner
and permissions of a file prove that on this machine; the signature (HMAC-SHA256 with 32 random
bytes that nobody else can read) proves it wherever the file is, in a shared folder or on a USB
stick.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from staticgraph.files import scratch

KEY = "key"
KEY_BYTES = 32
SIGNATURE_BYTES = 32


class NotOurs(Exception):
    """A file or folder that cannot be trusted, or a key that is not available."""


def folder() -> Path:
    """Returns the user's private folder for compiled code, created if missing.

    Raises:
        NotOurs: if it cannot be created, or belongs to someone else.
    """
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        path = root / "staticgraph" / "compiled"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise NotOurs(f"{path} is not a folder of this user")
        if status.st_mode & 0o077:
            path.chmod(0o700)
    except (OSError, RuntimeError) as error:  # without a home there is no ~
        raise NotOurs(f"no cache folder can be written ({error})") from None
    return path


def key() -> bytes:
    """Returns the user's key, created if missing.

    Raises:
        NotOurs: if there is no folder for it, or the file is not a key that only this user can
            access.
    """
    path = folder() / KEY
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            require_own(file, path, private=True)
            content = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise NotOurs(f"the key {path} cannot be written or read ({error})") from None
    if len(content) != KEY_BYTES:
        raise NotOurs(f"{path} is not a key of {KEY_BYTES} bytes; remove it")
    return content


def signature(contents: bytes) -> bytes:
    """Signs contents with this user's key.

    Raises:
        NotOurs: if there is no key, and none can be created.
    """
    return hmac.digest(key(), contents, "sha256")


def require_own(file: BinaryIO, path: Path, private: bool = False) -> None:
    """Rejects an open file that someone else owns or could have written.

    Args:
        file: the open file, not its path, which could be a link or be replaced.
        path: its path, for messages.
        private: also reject a file that others can read.

    Raises:
        NotOurs: if the file is rejected; the message gives the owner or the permissions.
    """
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise NotOurs(f"{path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise NotOurs(f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()})")
    rights, what, remedy = (
        (0o077, "read or written", "go-rwx") if private else (0o022, "written", "go-w")
    )
    if status.st_mode & rights:
        now = stat.filemode(status.st_mode)
        raise NotOurs(f"{path} can be {what} by others ({now}): chmod {remedy}")


def _make(path: Path) -> None:
    """Creates a key atomically, or keeps the one that another process created first."""
    scratch.clean(path)
    part = scratch.beside(path, "part")
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
