"""``edge_rows`` on one core: a loop over the edges, sorted by destination, per direction.

Backward scatters by source as it goes: on one core the order of additions is fixed.
"""

from __future__ import annotations

from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers


@CpuLoop
def forward(
    source: Matrix,
    target: Matrix,
    edge: Matrix,
    code: Indices,
    src: Indices,
    dst: Indices,
    out: Matrix,
) -> None:
    """Runs forward. Empty operands add nothing."""
    width, coded = out.shape[1], len(code) > 0
    sourced, targeted, edged = len(source) > 0, len(target) > 0, len(edge) > 0
    for e in range(len(out)):
        i, j, r = dst[e], src[e], code[e] if coded else e
        if sourced:
            for f in range(width):
                out[e, f] = source[j, f]
        else:
            for f in range(width):
                out[e, f] = 0
        if targeted:
            for f in range(width):
                out[e, f] += target[i, f]
        if edged:
            for f in range(width):
                out[e, f] += edge[r, f]


@CpuLoop
def backward(
    grad: Matrix,
    code: Indices,
    src: Indices,
    row_ptr: Pointers,
    dsource: Matrix,
    dtarget: Matrix,
    dedge: Matrix,
) -> None:
    """Runs backward. Empty gradients are not touched."""
    dsource[:], dedge[:] = 0, 0
    width = grad.shape[1]
    sourced, targeted, edged = len(dsource) > 0, len(dtarget) > 0, len(dedge) > 0
    for i in range(len(row_ptr) - 1):
        begin, end = row_ptr[i], row_ptr[i + 1]
        if targeted:
            for f in range(width):
                dtarget[i, f] = 0
        for e in range(begin, end):
            if targeted:
                for f in range(width):
                    dtarget[i, f] += grad[e, f]
            if sourced:
                j = src[e]
                for f in range(width):
                    dsource[j, f] += grad[e, f]
            if edged:
                r = code[e]
                for f in range(width):
                    dedge[r, f] += grad[e, f]
