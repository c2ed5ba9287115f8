"""The initial value of a row in a sum over neighbours, forward and backward."""

from __future__ import annotations

from staticgraph.jit import inlined
from staticgraph.store.columns import Array


@inlined
def own_term(rows: Array, i: int, scale: float, out: Array) -> None:
    """Sets ``out[i] = scale * rows[i]``; zero if the scale is zero, even where the row is not
    finite."""
    zero, factor = rows.dtype.type(0), rows.dtype.type(scale)
    if scale == 0.0:
        for f in range(rows.shape[1]):
            out[i, f] = zero
    else:
        for f in range(rows.shape[1]):
            out[i, f] = factor * rows[i, f]
