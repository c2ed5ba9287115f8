"""CRC-32 of arrays and of ranges of files, and errors for files that are not what was written.

A checksum detects damage, not forgery.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt

BLOCK = 1 << 20


def crc32_of_array(array: NDArray[Any]) -> int:
    """Returns the CRC-32 of an array's bytes in C order."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def crc32_of_file(path: Path) -> int:
    """Returns the CRC-32 of a whole file, read block by block."""
    with path.open("rb") as file:
        return crc32_of_stretch(file, sys.maxsize)


def crc32_of_stretch(file: BinaryIO, length: int) -> int:
    """Returns the CRC-32 of the next ``length`` bytes of an open file, or up to its end."""
    checksum = 0
    while length > 0 and (block := file.read(min(length, BLOCK))):
        checksum = zlib.crc32(block, checksum)
        length -= len(block)
    return checksum


def require_length(path: Path, length: int, remedy: str) -> None:
    """Checks that a file is there and as long as its manifest says.

    Raises:
        StoreCorrupt: if it is not; the message names the file.
    """
    actual = path.stat().st_size if path.is_file() else None
    if actual != length:
        raise StoreCorrupt(
            f"{path} has {'no' if actual is None else actual} bytes, the manifest says {length}: "
            f"it is incomplete; {remedy}"
        )


def require_written(now: int, then: int, what: str, remedy: str, part: str = "") -> None:
    """Checks the CRC-32 of what was read against that of what was written.

    Raises:
        StoreCorrupt: if they differ; the message names what was read, and the part of it.
    """
    if now != then:
        raise StoreCorrupt(
            f"{what} is not what was written{part} (checksum differs: CRC-32 {now:08x}, was "
            f"{then:08x}); {remedy}"
        )


def read_array(path: Path, remedy: str, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    """Reads an ``.npy`` file, or maps it.

    Raises:
        StoreCorrupt: if it is not one; the message names the file.
    """
    try:
        return np.load(path, mmap_mode, allow_pickle=False)
    except Exception as error:  # the exception depends on the bytes
        raise StoreCorrupt(f"{path} is not an array ({error}); {remedy}") from None
