"""Reads blocks of a file into existing arrays with ``preadv``, and writes them back.

Reads are few and large, go into memory that never moves, and use no shared file position, so that
several threads can read one file.

The operating system keeps data that was read in its page cache: a second copy, which hides from
measurements whether the disk was read at all. ``cached=False`` drops the pages as soon as a block
is in its array, or on the disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt
from staticgraph.text.how_many import how_many


class BlockFile:
    """A file that is read and written in blocks; counts reads and bytes read.

    Args:
        path: the file.
        writable: open it for writing, too.
        cached: keep blocks in the page cache; if False, a write waits for the disk.
    """

    path: Path
    cached: bool
    descriptor: int = -1

    def __init__(self, path: Path, writable: bool = False, cached: bool = True) -> None:
        self.path, self.cached = path, cached
        self.descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self.bytes_read: int = 0
        self.reads: int = 0

    def read(self, offset: int, into: NDArray[Any]) -> None:
        """Fills a contiguous array from ``offset`` on.

        Raises:
            StoreCorrupt: if the file ends before it is full.
        """
        at, view = offset, into.reshape(-1).view(np.uint8).data
        while view:  # one call may read less
            count = os.preadv(self.descriptor, [view], at)
            self.reads += 1
            if not count:
                raise StoreCorrupt(
                    f"{self.path} ends at byte {at}, {how_many(len(view), 'byte')} short of the "
                    f"block that begins at {offset}: the file was cut; partition the graph again"
                )
            view, at = view[count:], at + count
        self.bytes_read += into.nbytes
        self._forget(offset, at)

    def write(self, offset: int, *arrays: NDArray[Any]) -> None:
        """Writes contiguous arrays, one after the other, from ``offset`` on."""
        at = offset
        for array in arrays:
            view = array.data.cast("B")
            while view:  # one call may write less
                count = os.pwrite(self.descriptor, view, at)
                view, at = view[count:], at + count
        if not self.cached:  # only clean pages can be dropped
            os.fdatasync(self.descriptor)
        self._forget(offset, at)

    def _forget(self, start: int, end: int) -> None:
        if not self.cached and end > start:
            os.posix_fadvise(self.descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Closes the file; does nothing if it is already closed."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __del__ = close
