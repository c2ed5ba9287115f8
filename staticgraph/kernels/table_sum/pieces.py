"""The gradient of a table that many rows read, summed on several threads.

Any row may add to any entry, so the rows are cut into pieces, each with its own table, and the
tables are added in order. The number of pieces depends on sizes alone, so a sum does not depend on
the number of threads.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.store.columns import Array

# Most pieces, and fewest additions per entry in a piece: with fewer, its own table costs more than
# its sums.
PIECES = 4
ADDED_TO_AN_ENTRY = 4


@kernel_part
def of_pieces(additions: int, table: Array) -> Array:
    """Allocates a table for each piece, ``[pieces, V, F]``, uninitialised."""
    entries, columns = table.shape
    pieces = min(PIECES, additions // (ADDED_TO_AN_ENTRY * max(1, entries)))
    return np.empty((max(1, pieces), entries, columns), table.dtype)


@kernel_part
def join(tables: Array, out: Array) -> None:
    """Sums the tables in order; writes every element of ``out [V, F]``."""
    entries, columns = out.shape
    for v in range(entries):
        for f in range(columns):
            out[v, f] = tables[0, v, f]
    for piece in range(1, len(tables)):
        for v in range(entries):
            for f in range(columns):
                out[v, f] += tables[piece, v, f]
