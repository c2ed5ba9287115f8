"""How many graphs have each size: ogbg-molhiv's 32,901 training graphs have 795 distinct sizes.

Everything that decides shapes (packing, buckets, the memory budget) needs only the sizes of the
graphs, never their features.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.sizes.capacity import NODES_EDGES
from staticgraph.sizes.whole_numbers import (
    MOST_ROWS,
    IntArray,
    counted_rows,
    distinct_rows,
    whole_numbers,
)
from staticgraph.text.how_many import how_many

# Rows that are counted at once; sorting them takes about ten times their 16 bytes.
AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class SizeHistogram:
    """Distinct sizes and how many graphs have each, in lexicographic order.

    Attributes:
        sizes: ``[T, C]`` int64, one distinct size per row.
        counts: ``[T]`` int64, how many graphs have it, each at least 1.
        components: the ``C`` names of the columns; the first two are nodes and edges.

    Raises:
        ValueError: the shapes do not match, a number is too small, or a total is not below 2^62.
    """

    sizes: IntArray
    counts: IntArray
    components: tuple[str, ...] = NODES_EDGES

    def __post_init__(self) -> None:
        if self.sizes.ndim != 2 or self.sizes.shape[1] != len(self.components):
            raise ValueError(
                f"sizes has shape {self.sizes.shape}, expected [T, {len(self.components)}] "
                f"for the components {', '.join(self.components)}"
            )
        if self.counts.shape != self.sizes.shape[:1]:
            raise ValueError(
                f"{how_many(len(self.counts), 'count')} for {how_many(len(self.sizes), 'size')}"
            )
        if len(self.counts) and (self.counts.min() < 1 or self.sizes.min() < 0):
            raise ValueError("counts must be at least 1 and sizes at least 0")
        totals = self.counts.astype(np.float64) @ self.sizes.astype(np.float64)
        most = max(float(self.counts.sum(dtype=np.float64)), *totals.tolist(), 0.0)
        if most >= MOST_ROWS:
            raise ValueError(
                f"{most:.3g} graphs or rows in all, which 64 bits do not hold twice over "
                f"(2**62 is the most): scale the counts down"
            )

    @classmethod
    def from_sizes(cls, sizes: ArrayLike, components: Sequence[str] = NODES_EDGES) -> SizeHistogram:
        """Counts the distinct rows of ``sizes`` ``[n, C]``, in one pass of bounded memory."""
        array = np.asarray(sizes)
        if len(array) > AT_ONCE:
            starts = range(0, len(array), AT_ONCE)
            return cls.merged(
                [cls.from_sizes(array[start : start + AT_ONCE], components) for start in starts]
            )
        rows = np.ascontiguousarray(whole_numbers(array, "sizes of graphs"))
        distinct, counts = counted_rows(rows)
        return cls(distinct, counts.astype(np.int64), tuple(components))

    @classmethod
    def merged(cls, histograms: Sequence[SizeHistogram]) -> SizeHistogram:
        """The combined histogram of several, at least one, all with the same components."""
        distinct, member, _ = distinct_rows(np.concatenate([each.sizes for each in histograms]))
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, member, np.concatenate([each.counts for each in histograms]))
        return cls(distinct, counts, histograms[0].components)

    @classmethod
    def from_csv(cls, path: str | Path) -> SizeHistogram:
        """Reads ``num_nodes,num_edges[,...],count`` with one header line.

        Raises:
            ValueError: no ``count`` column, or a value that is not a whole number.
        """
        try:
            # With or without the byte-order mark that spreadsheets write.
            with Path(path).open(encoding="utf-8-sig") as file:
                header = file.readline().strip().split(",")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text; expected num_nodes,num_edges,count") from None
        if len(header) < 2 or header[-1] != "count":
            raise ValueError(
                f"{path}: the header is {','.join(header)!r}; expected num_nodes,num_edges,count"
            )
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise ValueError(f"{path}: the column {twice!r} appears twice; rename or drop one")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a file without rows, which raises below
                rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
            components = tuple(name.removeprefix("num_") for name in header[:-1])
            if rows.size:
                rows = rows[np.lexsort(rows[:, -2::-1].T)]
                sizes, counts = map(np.ascontiguousarray, (rows[:, :-1], rows[:, -1]))
                return cls(sizes, counts, components)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}: {error}; expected whole numbers below the header") from None
        raise ValueError(f"{path} has no rows below its header; expected sizes and counts")

    @property
    def num_graphs(self) -> int:
        """The number of graphs counted."""
        return int(self.counts.sum())

    @property
    def totals(self) -> IntArray:
        """``[C]`` int64: each component summed over all graphs."""
        return self.counts @ self.sizes

    @property
    def maxima(self) -> IntArray:
        """``[C]`` int64: the largest value of each component, zeros where there are no graphs."""
        if not len(self.counts):
            return np.zeros(len(self.components), dtype=np.int64)
        return self.sizes.max(axis=0)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any size or count (SHA-256)."""
        hashed = hashlib.sha256(",".join(self.components).encode())
        hashed.update(np.ascontiguousarray(self.sizes).tobytes())
        hashed.update(np.ascontiguousarray(self.counts).tobytes())
        return hashed.hexdigest()[:16]
