"""CRC-32 of arrays and of ranges of files; it detects damage, not forgery."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

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
