"""The edges of a batch, in the order of their destinations, with pointers to them from both ends.

One argument of all operators over neighbours: a list of five tensors in their schemas, this tuple
everywhere else.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Edges(NamedTuple):
    """Edges sorted by destination, as :class:`staticgraph.batches.slots.slots.SlotLayout` has them.

    Attributes:
        src, dst: ``[E]`` int64, both ends of each edge.
        row_ptr: ``[N + 1]`` int32; the edges into node ``i`` are ``row_ptr[i]`` up to
            ``row_ptr[i + 1]``.
        col_ptr, transpose: ``[N + 1]`` and ``[E]`` int32; the edges out of node ``j`` are
            ``transpose[k]`` for ``k`` from ``col_ptr[j]`` up to ``col_ptr[j + 1]``.
    """

    src: Tensor
    dst: Tensor
    row_ptr: Tensor
    col_ptr: Tensor
    transpose: Tensor
