"""Arrays of ``.npy`` and ``.npz`` files; a file that is none is an error that names it.

What NumPy raises depends on the bytes that happen to stand there: an end of file, a bad archive, a
request to unpickle. For whoever named the wrong file it is all one thing.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import BadGraph, UnknownDataset
from staticgraph.files.numpy_file import why_unreadable

UNREADABLE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def open_array(path: str | Path) -> NDArray[Any]:
    """The array of an ``.npy`` file, memory-mapped.

    Raises:
        FileNotFoundError: no such file.
        BadGraph: the file is no ``.npy``.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise BadGraph(
            f"{path} is not a .npy file of plain numbers: {why_unreadable(path)}"
        ) from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise BadGraph(f"{path} is an archive of arrays; give an .npy, which holds one")
    return found


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file, by name.

    Raises:
        UnknownDataset: the file is no ``.npz``.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (*UNREADABLE, TypeError, AttributeError) as error:  # the latter two where it is an .npy
        raise UnknownDataset(
            f"{path} is not an .npz file of plain arrays: {why_unreadable(path)}"
        ) from error
