"""Explains why NumPy cannot read a file; NumPy's own message suggests unsafe unpickling.

The exception that NumPy raises for a bad file depends on the bytes that happen to be in it: an end
of file, a bad archive, a request to unpickle.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

# The first bytes of .npy and .npz files.
NPY, NPZ = b"\x93NUMPY", b"PK"
UNREADABLE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def why_unreadable(path: str | Path) -> str:
    """Returns the reason, as the end of a sentence, why ``numpy.load`` could not read a file."""
    path = Path(path)
    if not path.stat().st_size:
        return "the file is empty"
    with path.open("rb") as file:
        begins = file.read(len(NPY))
    if begins == NPY:
        return "it is cut short, or holds Python objects"
    if not begins.startswith(NPZ):
        return "it does not begin as NumPy's files do"
    if not zipfile.is_zipfile(path):
        return "it is cut short; copy or download it again"
    return "it is damaged, or holds Python objects"
