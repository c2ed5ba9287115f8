"""``head_products`` on one core: one pass over the rows per direction, which are read in place."""

from __future__ import annotations

from staticgraph.jit import kernel
from staticgraph.kernels.lanes import dot
from staticgraph.store.columns import Array


@kernel
def forward(rows: Array, weight: Array, out: Array) -> None:
    """Runs forward; writes every element of ``out [H, N, K]``."""
    heads, nodes, count = out.shape
    columns = weight.shape[2]
    values, vectors = rows.reshape(-1), weight.reshape(-1)
    for i in range(nodes):
        for h in range(heads):
            row = (i * heads + h) * columns
            for k in range(count):
                vector = (k * heads + h) * columns
                out[h, i, k] = dot(values, row, vectors, vector, columns)


@kernel
def backward(grad: Array, rows: Array, weight: Array, drows: Array, dweight: Array) -> None:
    """Runs backward.

    ``dweight`` must be zeroed; every element of ``drows [N, H, C]`` is written.
    """
    nodes, heads, columns = rows.shape
    zero = rows.dtype.type(0)
    for i in range(nodes):
        for h in range(heads):
            for c in range(columns):
                drows[i, h, c] = zero
            for k in range(len(weight)):
                g = grad[h, i, k]
                for c in range(columns):
                    drows[i, h, c] += g * weight[k, h, c]
                for c in range(columns):
                    dweight[k, h, c] += g * rows[i, h, c]
