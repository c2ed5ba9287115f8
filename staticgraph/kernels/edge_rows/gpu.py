"""``edge_rows`` on CUDA: torch's gathers forward, sums by row pointer backward, without atomics.

Backward uses the kernels of :mod:`staticgraph.kernels.segments` and
:mod:`staticgraph.kernels.table_sum`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows.op import edge_rows_reference
from staticgraph.kernels.register import CUDA
from staticgraph.kernels.table_sum import gpu as tables


def forward(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    edges: Sequence[Tensor],
) -> Tensor:
    """Runs forward."""
    return edge_rows_reference(source, target, edge, code, *edges[:2])


def backward(
    grad: Tensor,
    code: Tensor | None,
    edges: Sequence[Tensor],
    entries: int,
    source: bool,
    target: bool,
    edge: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs backward in one launch per operand, plus one that reorders the edges."""
    _, _, row_ptr, col_ptr, transpose = edges
    by_source, by_target, by_edge = (grad.new_empty(0, grad.size(1)) for _ in range(3))
    if source:
        ordered = grad.index_select(0, transpose.to(torch.int64))
        by_source = CUDA["segment_sum"](ordered, col_ptr, False)
    if target:
        by_target = CUDA["segment_sum"](grad, row_ptr, False)
    if edge and code is not None:
        by_edge = tables.backward(grad, code.view(-1, 1), None, entries)
    return by_source, by_target, by_edge
