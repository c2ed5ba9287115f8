"""A folder that only its owner can write to, and a key in it to sign files with.

What is kept there is run when it is read, so it must be this user's own work. The owner and the
rights of a file say that it is his on this machine; the signature (HMAC-SHA256 with 32 random bytes
that nobody else can read) says so wherever the file stands, in a shared folder or on a stick.
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
    """A file or folder that is not to be trusted, or a key that cannot be had; says why."""


def folder() -> Path:
    """The user's own folder for compiled code, made where it is missing, open to nobody else.

    Raises:
        NotOurs: it cannot be made, or belongs to someone else.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if base else Path("~/.cache").expanduser()
        path = root / "staticgraph" / "compiled"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise NotOurs(f"{path} is not a folder of this user")
        if found.st_mode & 0o077:
            path.chmod(0o700)
    except (OSError, RuntimeError) as error:  # without a home there is no ~
        raise NotOurs(f"no cache folder can be written ({error})") from None
    return path


def key() -> bytes:
    """The user's key, made where it is missing.

    Raises:
        NotOurs: no folder for it, or what stands there is not a key of this user alone.
    """
    path = folder() / KEY
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            require_own(file, path, private=True)
            found = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise NotOurs(f"the key {path} cannot be written or read ({error})") from None
    if len(found) != KEY_BYTES:
        raise NotOurs(f"{path} is not a key of {KEY_BYTES} bytes; remove it")
    return found


def signature(contents: bytes) -> bytes:
    """Of this user.

    Raises:
        NotOurs: there is no key, and none can be made.
    """
    return hmac.digest(key(), contents, "sha256")


def require_own(file: BinaryIO, path: Path, private: bool = False) -> None:
    """Refuses an open file that someone else owns or may have written.

    Args:
        file: the file; its name may be a link, or be exchanged meanwhile.
        path: its name, for messages.
        private: others may not read it either.

    Raises:
        NotOurs: with the owner or the rights.
    """
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise NotOurs(f"{path} is not a regular file")
    if found.st_uid != os.geteuid():
        raise NotOurs(f"{path} belongs to user {found.st_uid}, not to you ({os.geteuid()})")
    if found.st_mode & (0o077 if private else 0o022):
        rights = stat.filemode(found.st_mode)
        what = "read or written" if private else "written"
        remedy = "chmod go-rwx" if private else "chmod go-w"
        raise NotOurs(f"{path} can be {what} by others ({rights}): {remedy}")


def _make(path: Path) -> None:
    """A new key, whole at once; that of another process where it was faster."""
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
