"""Chooses a cache folder for numba on machines where its default folders are not writable.

Every compiled loop of this package is cached on disk, next to its source or in the user's cache
folder. In a container with a read-only home and a read-only installation neither is writable; numba
then refuses to compile, and importing this package would fail. This module tries numba's folders
before numba is imported. If none is writable, numba gets a new temporary folder for this process
(never a predictable path in a shared folder, since numba unpickles what it finds there); if even
that cannot be created, nothing is cached.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def ensure() -> None:
    """Makes sure that numba can cache code or does not try; warns if it changes anything."""
    if any(_takes_files(folder) for folder in places()):
        return
    try:
        folder = tempfile.mkdtemp(prefix="staticgraph-numba-")
    except OSError:
        _never_cache()
        warnings.warn(
            "no folder can be written, so loops are compiled again by every process; set "
            "NUMBA_CACHE_DIR to one that can",
            stacklevel=2,
        )
        return
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder
    atexit.register(_remove, folder, os.getpid())
    warnings.warn(
        f"neither {PACKAGE} nor the user's cache folder can be written, so compiled loops are kept "
        f"in {folder} while this process lives; set NUMBA_CACHE_DIR to keep them",
        stacklevel=2,
    )


def places() -> list[Path]:
    """Returns the folders where numba would cache this package's code, in numba's order."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    return [
        *([Path(chosen)] if chosen else []),
        PACKAGE / "__pycache__",
        Path(user) / "numba",
    ]


def holds_kernels() -> bool:
    """Whether any CPU kernel of this package is in numba's cache, for this or another model."""
    folders = [PACKAGE / "kernels", *places()]
    return any(next(folder.rglob("cpu.*.nbi"), None) for folder in folders)


def _takes_files(folder: Path) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _never_cache() -> None:
    from numba.core.dispatcher import Dispatcher

    Dispatcher.enable_caching = lambda self: None


def _remove(folder: str, owner: int) -> None:
    """Removes the folder, except in a fork, which inherits this exit handler."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
