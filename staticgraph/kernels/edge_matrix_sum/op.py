"""``edge_matrix_sum`` as a torch operator: reference, registration, shapes.

A message-passing network with one matrix per edge multiplies each neighbour's row by its edge's
matrix: one small product per edge, and each further call of the same layer allocates another
gradient as large as all matrices. Here a matrix is read while its message is summed, and if the
matrices are handed on, the operator itself accumulates the gradients of all calls. There is no CUDA
kernel.

Source: Gilmer et al. 2017, arXiv 1704.01212.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.edge_matrix_sum import cpu
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import contiguous


def edge_matrix_sum_reference(
    x: Tensor, matrices: Tensor, src: Tensor, dst: Tensor, mean: bool
) -> Tensor:
    """Computes ``edge_matrix_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.edge_matrix_sum`; edges in any order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = torch.einsum("ek,eko->eo", x.to(wide).index_select(0, src), matrices.to(wide))
    out = rows.new_zeros(len(x), rows.size(1)).index_add(0, dst, rows)
    if mean:
        degree = rows.new_zeros(len(x)).index_add(0, dst, torch.ones_like(dst, dtype=wide))
        out = out / degree.clamp(min=1).unsqueeze(-1)
    return out.to(x.dtype)


_edge_matrix_sum = operator(
    "edge_matrix_sum(Tensor x, Tensor matrices, Tensor[] edges, bool mean) -> Tensor",
    cpu=cpu.forward,
    cuda=None,
    fake=lambda x, matrices, *_: x.new_empty(x.size(0), matrices.size(2)),
    backward=operator(
        "edge_matrix_sum_backward(Tensor grad, Tensor x, Tensor matrices, Tensor[] edges, "
        "Tensor? into_matrices, bool mean) -> (Tensor dx, Tensor dmatrices)",
        cpu=cpu.backward,
        cuda=None,
        fake=lambda grad, x, matrices, *_: (torch.empty_like(x), torch.empty_like(matrices)),
    ),
)


def edge_matrix_sum(
    x: Tensor,
    matrices: Tensor,
    edges: Edges,
    *,
    mean: bool = False,
) -> Tensor:
    """Computes ``out[i] = sum over edges e into i of x[src[e]] @ matrices[e]``; CPU only.

    Args:
        x: ``[N, I]``; half precisions are accumulated in float32.
        matrices: ``[E, I, O]`` in the dtype of ``x``.
        edges: their ends and pointers.
        mean: divide the sum by the number of edges into ``i``, at least 1.

    Returns:
        ``[N, O]``, differentiable once in ``x`` and ``matrices``. Bitwise deterministic.
    """
    return _edge_matrix_sum(*contiguous(x, matrices), edges, mean)


def edge_matrix_sum_handed_on(
    x: Tensor,
    matrices: Tensor,
    edges: Edges,
    *,
    mean: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns :func:`edge_matrix_sum`, and the matrices for their next reader.

    Later code should read the returned matrices instead of those passed in.
    """
    return _edge_matrix_sum(*contiguous(x, matrices), edges, mean, handed=("matrices",))
