"""The gradient of a table that many rows read, summed on several threads.

Any row may add to any entry, so the rows are cut into pieces, each with a table of its own, which
are joined in their order. How many there are goes by sizes alone: the number of threads has no say
in a sum.
"""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array

# Pieces at most, and additions to an entry that a piece has at least: else its own table costs more
# than its sums.
PIECES = 4
ADDED_TO_AN_ENTRY = 4


@kernel
def of_pieces(additions: int, table: Array) -> Array:
    """A table for each piece, ``[pieces, V, F]``, not yet written."""
    entries, columns = table.shape
    pieces = min(PIECES, additions // (ADDED_TO_AN_ENTRY * max(1, entries)))
    return np.empty((max(1, pieces), entries, columns), table.dtype)


@kernel
def join(tables: Array, out: Array) -> None:
    """Every element of ``out [V, F]`` is written."""
    entries, columns = out.shape
    for v in range(entries):
        for f in range(columns):
            out[v, f] = tables[0, v, f]
    for piece in range(1, len(tables)):
        for v in range(entries):
            for f in range(columns):
                out[v, f] += tables[piece, v, f]
