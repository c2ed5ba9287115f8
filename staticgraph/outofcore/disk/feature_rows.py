"""Reads a caller's features as rows of numbers that can be written and read back.

The file holds raw bytes without a header, so rows are always converted to the machine's byte order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.array_files import open_array

# torch and NumPy share no real dtype wider than 8 bytes.
WIDEST_BYTES = 8


class FeatureRows:
    """``[N, F]`` features, read by rows.

    Args:
        features: an array, memory-mapped or not, a host tensor, lists, or the path of an ``.npy``,
            which is memory-mapped.
        num_nodes: N.

    Attributes:
        dtype: the dtype in which rows are written.
        width: F.

    Raises:
        BadGraph: if the shape is another one, or the dtype is not one that torch and NumPy share.
    """

    dtype: np.dtype[Any]
    width: int

    def __init__(self, features: ArrayLike | str | Path, num_nodes: int) -> None:
        self._rows: NDArray[Any] = _array(features)
        shape, dtype = self._rows.shape, self._rows.dtype
        if len(shape) != 2 or shape[0] != num_nodes:
            raise BadGraph(f"features has shape {shape}; give [{num_nodes}, F], a row per node")
        if dtype.kind not in "biuf" or dtype.itemsize > WIDEST_BYTES:
            raise BadGraph(
                f"features has dtype {dtype}; give numbers, such as float32, float16 or int64"
            )
        self.dtype, self.width = dtype.newbyteorder("="), shape[1]

    @property
    def row_bytes(self) -> int:
        """Bytes per node."""
        return self.width * self.dtype.itemsize

    def blocks(self, nodes: NDArray[np.int64], size: int) -> Iterator[NDArray[Any]]:
        """Yields the rows of these nodes in blocks ``[size, F]``; the last may be smaller."""
        for low in range(0, len(nodes), size):
            yield np.ascontiguousarray(self._rows[nodes[low : low + size]], self.dtype)


def _array(features: ArrayLike | str | Path) -> NDArray[Any]:
    if isinstance(features, str | Path):
        return open_array(features)
    try:
        return np.asarray(features)
    except (TypeError, ValueError) as error:
        raise BadGraph(f"features is not an array of numbers ({error}); give [N, F]") from error
