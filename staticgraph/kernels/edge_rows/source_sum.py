"""Rows of edges added up by their source: the way back of ``edge_rows``, as a function of its own.

``scatter(message, edge_index[0])``, the flow of a layer with ``flow="target_to_source"``. Edges are
sorted by destination, so it is no reduction of segments, but what brings a gradient back to the
sources adds up just that, in one order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows.op import rows_of_ends, sums_of_ends
from staticgraph.kernels.register import differentiable_once


class SourceSum(torch.autograd.Function):
    """The derivative is a gather."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """``[N, F]`` as :func:`source_sum` gives it."""
        rows, src, dst, row_ptr, col_ptr, transpose = inputs
        ctx.save_for_backward(src, dst)
        pointers = row_ptr, col_ptr, transpose
        return sums_of_ends(rows, None, src, *pointers, 0, True, False, False)[0]

    @staticmethod
    @differentiable_once("source_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of ``rows``, ``[E, F]``."""
        src, dst = ctx.saved_tensors
        return rows_of_ends(grads[0].contiguous(), None, None, None, src, dst), *(None,) * 5


def source_sum(
    rows: Tensor, src: Tensor, dst: Tensor, row_ptr: Tensor, col_ptr: Tensor, transpose: Tensor
) -> Tensor:
    """``out[j] = sum of rows[e] over the edges e with src[e] = j``.

    Args:
        rows: ``[E, F]``.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.

    Returns:
        ``[N, F]`` in the dtype of ``rows``; half precisions are added up in float32. Differentiable
        once. The same bits every time.
    """
    return SourceSum.apply(rows.contiguous(), src, dst, row_ptr, col_ptr, transpose)
