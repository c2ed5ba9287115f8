"""Edge rows summed by their source: the backward of ``edge_rows`` as a function of its own.

It computes ``scatter(message, edge_index[0])``, the message flow of a layer with
``flow="target_to_source"``. Edges are sorted by destination, so this is not a segment reduction,
but it is what brings a gradient back to the sources, in a fixed order of additions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows.op import rows_of_ends, sums_of_ends
from staticgraph.kernels.register import differentiable_once


class SourceSum(torch.autograd.Function):
    """Autograd function of :func:`source_sum`; backward is a gather."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the ``[N, F]`` of :func:`source_sum`."""
        rows, src, dst, row_ptr, col_ptr, transpose = inputs
        ctx.save_for_backward(src, dst)
        pointers = row_ptr, col_ptr, transpose
        return sums_of_ends(rows, None, src, *pointers, 0, True, False, False)[0]

    @staticmethod
    @differentiable_once("source_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of ``rows``, ``[E, F]``."""
        src, dst = ctx.saved_tensors
        return rows_of_ends(grads[0].contiguous(), None, None, None, src, dst), *(None,) * 5


def source_sum(
    rows: Tensor, src: Tensor, dst: Tensor, row_ptr: Tensor, col_ptr: Tensor, transpose: Tensor
) -> Tensor:
    """Computes ``out[j] = sum of rows[e] over the edges e with src[e] = j``.

    Args:
        rows: ``[E, F]``.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.

    Returns:
        ``[N, F]`` in the dtype of ``rows``; half precisions are accumulated in float32.
        Differentiable once. Bitwise deterministic.
    """
    return SourceSum.apply(rows.contiguous(), src, dst, row_ptr, col_ptr, transpose)
