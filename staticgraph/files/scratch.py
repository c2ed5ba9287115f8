"""Names of scratch files and folders next to a target, and the rules for removing them.

A killed process cannot clean up, so the next one must, without a lock and without removing what a
live process is still writing. The name identifies the owner: machine, process id, and a random
token of the process, since ids are reused (in a container every process may have id 1). Scratch of
a dead process on this machine is removed at once; that of another machine, where the process cannot
be checked, after a day.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

# "part": incomplete, or being removed; "old": complete, and moved out of the way.
Kind = Literal["part", "old"]

MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"
TOKEN = os.urandom(4).hex()
FOREIGN_S = 24 * 3600.0
# Names are limited to 255 bytes on common file systems; the scratch of longer targets is shortened.
LONGEST_NAME = 180

_numbers = itertools.count()


def beside(target: Path, kind: Kind) -> Path:
    """Returns an unused name in the folder of ``target``."""
    who = f"{MACHINE}-{os.getpid()}-{TOKEN}-{next(_numbers)}"
    return target.with_name(f".{_stem(target)}.{who}.{kind}")


def find_beside(target: Path, kind: Kind) -> Iterator[Path]:
    """Yields the paths next to ``target`` whose names were made by :func:`beside`."""
    pattern = re.compile(
        rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{8}}-\d+-[0-9a-f]{{8}}-\d+\.{kind}"
    )
    try:
        with os.scandir(target.parent) as entries:
            names = sorted(entry.name for entry in entries if pattern.fullmatch(entry.name))
    except FileNotFoundError:
        return
    yield from (target.with_name(name) for name in names)


def clean(target: Path) -> None:
    """Removes the scratch that dead processes left next to ``target``.

    Old versions are removed if the target exists, whoever moved them aside: without a target, one
    of them may be the only copy.
    """
    for path in find_beside(target, "part"):
        if abandoned(path):
            remove(path)
    for path in find_beside(target, "old") if target.exists() else ():
        remove(path)


def abandoned(path: Path) -> bool:
    """Returns whether the process that made a scratch name is dead, as far as can be told."""
    machine, pid, token, _ = path.name.rsplit(".", 2)[1].split("-")
    if machine != MACHINE:
        try:
            return time.time() - path.stat().st_mtime > FOREIGN_S
        except FileNotFoundError:
            return False
    if int(pid) == os.getpid():
        return token != TOKEN
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # alive, and another user's
    return False


def remove(path: Path) -> None:
    """Removes a scratch file or folder; an old folder is first renamed to mark it as incomplete.

    What cannot be marked stays, for the next writer to remove.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if path.suffix == ".old":
        marked = path.with_suffix(".part")
        try:
            os.rename(path, marked)
        except OSError:
            return
        path = marked
    shutil.rmtree(path, ignore_errors=True)


def _stem(target: Path) -> str:
    name = target.name
    if len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    return f"{name[:40]}~{zlib.crc32(os.fsencode(name)):08x}"
