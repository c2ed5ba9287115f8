"""``edge_rows`` on CUDA: torch's gathers forward, sums by row pointer backward, without atomics.

Backward uses the kernels of :mod:`staticgraph.kernels.segments` and
:mod:`staticgraph.kernels.table_sum`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows.reference import edge_rows_reference
from staticgraph.kernels.segments import gpu as segments
from staticgraph.kernels.table_sum.op import table_gradient

Found = tuple[Tensor, Tensor, Tensor]


def forward(*operands: Tensor) -> Tensor:
    """Runs forward."""
    return edge_rows_reference(*operands)


def backward(
    grad: Tensor,
    code: Tensor | None,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    entries: int,
    wants: tuple[bool, bool, bool],
) -> Found:
    """Runs backward in one launch per operand, plus one that reorders the edges."""
    nothing = grad.new_empty(0, grad.size(1))
    by_source, by_target, by_edge = nothing, nothing, nothing
    if wants[0]:
        ordered = grad.index_select(0, transpose.to(torch.int64))
        by_source = segments.sum_forward(ordered, col_ptr, False)
    if wants[1]:
        by_target = segments.sum_forward(grad, row_ptr, False)
    if wants[2] and code is not None:
        by_edge = table_gradient(grad, code.view(-1, 1), None, entries)
    return by_source, by_target, by_edge
