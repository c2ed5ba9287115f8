"""What collation reads and writes, as tensors and numbers that an operator of torch can take."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Of the Triton kernels, a batch.
LAUNCHES = 2


class Arguments(NamedTuple):
    """The arguments of the operator after the ids.

    Attributes:
        structure: the arrays of a store on the device, in the order of
            :mod:`staticgraph.batches.collation.collate_arguments`.
        columns: one a field, ``[rows, width]``, or bytes of bits.
        levels: of each field, its place in :data:`LEVELS`.
        widths: scalars in a row of each.
        kinds: how each is kept: :data:`PLAIN`, :data:`BITS` or :data:`LABELS`.
        positions: which field gets the padding nodes' places on a line, -1 for none.
        out: :data:`OUTPUTS`, :data:`POINTERS` where asked for, the fields as ``[rows, width]``.
    """

    structure: list[Tensor]
    columns: list[Tensor]
    levels: list[int]
    widths: list[int]
    kinds: list[int]
    positions: int
    out: list[Tensor]
