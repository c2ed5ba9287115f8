"""Reads arrays from ``.npy`` and ``.npz`` files, with one error that names an unreadable file.

The exception that NumPy raises depends on the bytes that happen to be in the file: an end of file,
a bad archive, a request to unpickle. For the user who named the wrong file, they all mean the same.
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
    """Opens the array of an ``.npy`` file, memory-mapped.

    Raises:
        FileNotFoundError: if there is no such file.
        BadGraph: if the file is not an ``.npy`` file.
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
    """Reads all arrays of an ``.npz`` file, by name.

    Raises:
        UnknownDataset: if the file is not an ``.npz`` file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (*UNREADABLE, TypeError, AttributeError) as error:  # the latter two for an .npy
        raise UnknownDataset(
            f"{path} is not an .npz file of plain arrays: {why_unreadable(path)}"
        ) from error
