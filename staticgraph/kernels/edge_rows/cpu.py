"""``edge_rows`` on one core: a loop over the edges, sorted by destination, per direction.

Backward scatters by source as it goes: on one core the order of additions is fixed.
"""

from __future__ import annotations

from staticgraph.jit import kernel
from staticgraph.store.columns import Array


@kernel
def forward(
    source: Array, target: Array, edge: Array, code: Array, src: Array, dst: Array, out: Array
) -> None:
    """Runs forward; writes every element of ``out [E, F]``. Empty operands add nothing."""
    width, coded = out.shape[1], len(code) > 0
    sourced, targeted, edged = len(source) > 0, len(target) > 0, len(edge) > 0
    for e in range(len(out)):
        row, r = out[e], code[e] if coded else e
        if sourced:
            mine = source[src[e]]
            for f in range(width):
                row[f] = mine[f]
        else:
            for f in range(width):
                row[f] = 0
        if targeted:
            mine = target[dst[e]]
            for f in range(width):
                row[f] += mine[f]
        if edged:
            mine = edge[r]
            for f in range(width):
                row[f] += mine[f]


@kernel
def backward(
    grad: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    dsource: Array,
    dtarget: Array,
    dedge: Array,
) -> None:
    """Runs backward.

    ``dsource`` and ``dedge`` must be zeroed; every element of ``dtarget`` is written. Empty
    gradients are not touched.
    """
    width = grad.shape[1]
    sourced, targeted, edged = len(dsource) > 0, len(dtarget) > 0, len(dedge) > 0
    for i in range(len(row_ptr) - 1):
        begin, end = row_ptr[i], row_ptr[i + 1]
        if targeted:
            total = dtarget[i]
            for f in range(width):
                total[f] = 0
            for e in range(begin, end):
                row = grad[e]
                for f in range(width):
                    total[f] += row[f]
        if sourced:
            for e in range(begin, end):
                row, to = grad[e], dsource[src[e]]
                for f in range(width):
                    to[f] += row[f]
        if edged:
            for e in range(begin, end):
                row, to = grad[e], dedge[code[e]]
                for f in range(width):
                    to[f] += row[f]
