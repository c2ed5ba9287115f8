"""``dot_attention`` on one core: loops over destinations both ways, nothing of size
``[E, H * C]``.

Forward computes all scores first, then all exponentials
in one vectorised loop, then the sums. The attention weights are kept for backward, which scatters
as it goes: on one core the order of additions is fixed.

A loop is vectorised if it covers whole rows, with few arrays and no branch. So products are written
to a row before each head's columns are summed, and a per-head number is spread over the head's
columns before rows are multiplied by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import inlined, kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.lanes import total
from staticgraph.store.columns import Array


@inlined
def _products(left: Array, i: int, right: Array, j: int, more: Array, r: int, row: Array) -> None:
    """Writes ``left[i] * (right[j] + more[r])`` to ``row``."""
    for f in range(len(row)):
        row[f] = left[i, f] * (right[j, f] + more[r, f])


@inlined
def _sums(products: Array, heads: int, factor: Any, found: Array, place: int) -> None:
    """Sets ``found[place, h]`` to ``factor`` times the sum of the head's columns."""
    width = len(products) // heads
    for h in range(heads):
        found[place, h] = factor * total(products, h * width, width)


@inlined
def _spread(numbers: Array, place: int, found: Array) -> None:
    """Sets ``found[h, c] = numbers[place, h]``."""
    for h in range(found.shape[0]):
        number = numbers[place, h]
        for c in range(found.shape[1]):
            found[h, c] = number


@kernel_part
def _edge_terms(edge: Array, added: bool, rows: Array) -> Array:
    """Returns what edges add to such rows: a row of zeros for all edges if nothing."""
    return edge if added and len(edge) > 0 else np.zeros((1, rows.shape[1]), rows.dtype)


@CpuLoop
def forward(
    query: Matrix,
    key: Matrix,
    value: Matrix,
    edge: Matrix,
    code: Indices,
    src: Indices,
    row_ptr: Pointers,
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
    out: Matrix,
    share: Matrix,
) -> None:
    """Runs forward."""
    key_edge, value_edge = _edge_terms(edge, to_key, key), _edge_terms(edge, to_value, value)
    nodes, columns = out.shape
    kind = out.dtype.type
    zero, one, factor, lowest = kind(0), kind(1), kind(scale), kind(-np.inf)
    coded, by_key, by_value = len(code) > 0, len(key_edge) > 1, len(value_edge) > 1
    best, sums = np.empty(heads, out.dtype), np.empty(heads, out.dtype)
    row, spread = (
        np.empty(query.shape[1], out.dtype),
        np.empty((heads, columns // heads), out.dtype),
    )
    by = spread.reshape(columns)
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        for h in range(heads):
            best[h] = lowest
        for e in range(first, last):
            r = code[e] if coded else e
            _products(query, i, key, src[e], key_edge, r if by_key else 0, row)
            _sums(row, heads, factor, share, e)
            for h in range(heads):
                found, most = share[e, h], best[h]
                best[h] = found if found > most or found != found else most
        for e in range(first, last):
            for h in range(heads):
                share[e, h] -= best[h]
    flat = share.reshape(-1)
    for k in range(len(flat)):
        flat[k] = exp(flat[k])
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        for f in range(columns):
            out[i, f] = zero
        for h in range(heads):
            sums[h] = zero
        for e in range(first, last):
            for h in range(heads):
                sums[h] += share[e, h]
        for h in range(heads):
            sums[h] = one / sums[h]
        for e in range(first, last):
            r = code[e] if coded else e
            for h in range(heads):
                share[e, h] *= sums[h]
            _spread(share, e, spread)
            j, r = src[e], r if by_value else 0
            for f in range(columns):
                out[i, f] += by[f] * (value[j, f] + value_edge[r, f])


@CpuLoop
def backward(
    grad: Matrix,
    out: Matrix,
    share: Matrix,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    edge: Matrix,
    code: Indices,
    src: Indices,
    row_ptr: Pointers,
    scale: float,
    to_key: bool,
    to_value: bool,
    dquery: Matrix,
    dkey: Matrix,
    dvalue: Matrix,
    dedge: Matrix,
) -> None:
    """Runs backward."""
    dkey[:], dvalue[:], dedge[:] = 0, 0, 0
    key_edge, value_edge = _edge_terms(edge, to_key, key), _edge_terms(edge, to_value, value)
    nodes, columns = out.shape
    heads, width = share.shape[1], query.shape[1]
    kind = out.dtype.type
    zero, one, factor = kind(0), kind(1), kind(scale)
    coded, by_key, by_value = len(code) > 0, len(key_edge) > 1, len(value_edge) > 1
    to_key, to_value = to_key and len(dedge) > 0, to_value and len(dedge) > 0
    mean, slope = np.empty((1, heads), out.dtype), np.empty((1, heads), out.dtype)
    nothing = np.zeros((1, columns), out.dtype)
    parts = np.empty((heads, columns // heads), out.dtype)
    slopes = np.empty((heads, width // heads), out.dtype)
    part, steep = parts.reshape(columns), slopes.reshape(width)
    for i in range(nodes):
        _products(grad, i, out, i, nothing, 0, part)
        _sums(part, heads, one, mean, 0)
        for f in range(width):
            dquery[i, f] = zero
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j, r = src[e], code[e] if coded else e
            _products(grad, i, value, j, value_edge, r if by_value else 0, part)
            _sums(part, heads, one, slope, 0)
            for h in range(heads):
                slope[0, h] = factor * share[e, h] * (slope[0, h] - mean[0, h])
            _spread(slope, 0, slopes)
            _spread(share, e, parts)
            k = r if by_key else 0
            for f in range(width):
                dquery[i, f] += steep[f] * (key[j, f] + key_edge[k, f])
            for f in range(width):
                dkey[j, f] += steep[f] * query[i, f]
            for f in range(columns):
                dvalue[j, f] += part[f] * grad[i, f]
            if to_key:
                for f in range(width):
                    dedge[r, f] += steep[f] * query[i, f]
            if to_value:
                for f in range(columns):
                    dedge[r, f] += part[f] * grad[i, f]
