"""The inputs and outputs of collation, as tensors and numbers that a torch operator accepts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Launches of the Triton kernels per batch.
LAUNCHES = 2
# What padding rows hold: zeros; a real row's values; those, shifted by 0, 1, 2, ... in the first
# column.
ZERO, COPY, LINE = range(3)


class Arguments(NamedTuple):
    """The arguments of the operator after the ids.

    Attributes:
        structure: the store's arrays on the device, in the order of
            :mod:`staticgraph.batches.collation.collate_arguments`.
        columns: one per field, ``[rows, width]``.
        levels: per field, its index in :data:`LEVELS`.
        widths: per field, scalars per row.
        paddings: per field, what its padding rows hold: :data:`ZERO`, :data:`COPY` or
            :data:`LINE`.
        apart: whether padding edges join neighbouring padding nodes instead of being self-loops.
        paired: whether every second padding edge is the reverse of the one before it.
        out: :data:`OUTPUTS`, then :data:`POINTERS` if requested, then the fields as
            ``[rows, width]``.
    """

    structure: list[Tensor]
    columns: list[Tensor]
    levels: list[int]
    widths: list[int]
    paddings: list[int]
    apart: bool
    paired: bool
    out: list[Tensor]
