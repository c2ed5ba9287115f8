"""``graph_attention`` on one core: a loop over graphs and heads each way, nothing padded.

Molecules have a dozen nodes, and attention in blocks computes as many entries again for padding,
with a product, a mask and a softmax of torch each for a few microseconds of arithmetic. Here keys
and values of one graph and head are laid out column by column, so that all keys of a query are one
vector; rows are as wide as a multiple of what the vector unit takes, and what is behind the last
key weighs nothing. Sums and the largest score go by lanes, in one order on every machine.

A weight's fate is the hash of :mod:`staticgraph.kernels.dropout_sum`, one key a row and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.kernels.exponential import exp
from staticgraph.kernels.jit import kernel
from staticgraph.packing.random import STEP, mix
from staticgraph.store.columns import Array

_TOP = np.uint64(40)
# Of the hash 24 bits decide, as many as a float32 between 0 and 1 has.
_STEPS = 1 << 24
LANES = 16


@kernel
def _keep(first: int, i: int, heads: int, h: int, start: Any, least: Any, out: Array) -> None:
    """Which of a query's weights are kept: one or zero."""
    key = mix(start + np.uint64((first + i) * heads + h) * STEP)
    for j in range(len(out)):
        out[j] = 1 if (mix(key + np.uint64(j) * STEP) >> _TOP) >= least else 0


@kernel
def _fill(first: int, seed: int, site: int, p: float, out: Array) -> None:
    heads, queries, _ = out.shape
    start = mix(np.uint64(seed) + mix(np.uint64(site) * STEP))
    for h in range(heads):
        for i in range(queries):
            _keep(first, i, heads, h, start, np.uint64(p * _STEPS), out[h, i])


def kept(first: int, nodes: int, heads: int, seed: int, site: int, p: float) -> Tensor:
    """``[H, n, n]`` bool: the weights that a graph of ``nodes`` keeps, its first row given."""
    out = np.empty((heads, nodes, nodes), np.bool_)
    _fill(first, seed, site, p, out)
    return torch.from_numpy(out)


@kernel
def _columns(rows: Array, begin: int, end: int, part: int, h: int, out: Array) -> None:
    """``out [D, padded]``: one part and head of rows ``begin`` to ``end``, turned; zeros behind."""
    for d in range(len(out)):
        for j in range(end - begin):
            out[d, j] = rows[begin + j, part, h, d]
        for j in range(end - begin, out.shape[1]):
            out[d, j] = 0


@kernel
def _products(row: Array, columns: Array, scale: Any, out: Array) -> None:
    """``out[j] = scale * row . columns[:, j]``, four columns of the sum at a time."""
    size, padded = columns.shape
    for j in range(padded):
        out[j] = 0
    whole = size - size % 4
    for d in range(0, whole, 4):
        a, b, c, e = scale * row[d], scale * row[d + 1], scale * row[d + 2], scale * row[d + 3]
        one, two, three, four = columns[d], columns[d + 1], columns[d + 2], columns[d + 3]
        for j in range(padded):
            out[j] += (a * one[j] + b * two[j]) + (c * three[j] + e * four[j])
    for d in range(whole, size):
        a, one = scale * row[d], columns[d]
        for j in range(padded):
            out[j] += a * one[j]


@kernel
def _largest(values: Array, lanes: Array) -> Any:
    for k in range(LANES):
        lanes[k] = values[k]
    for j in range(LANES, len(values), LANES):
        for k in range(LANES):
            value, best = values[j + k], lanes[k]
            lanes[k] = value if value > best or value != value else best
    found = lanes[0]
    for k in range(1, LANES):
        value = lanes[k]
        found = value if value > found or value != value else found
    return found


@kernel
def _total(values: Array, lanes: Array, zero: Any) -> Any:
    for k in range(LANES):
        lanes[k] = values[k]
    for j in range(LANES, len(values), LANES):
        for k in range(LANES):
            lanes[k] += values[j + k]
    found = zero
    for k in range(LANES):
        found += lanes[k]
    return found


@kernel
def _forward(
    rows: Array,
    starts: Array,
    seed: int,
    site: int,
    p: float,
    out: Array,
    lse: Array,
) -> None:
    """``rows`` are ``[N, 3, H, D]``; ``out [N, H, D]`` and ``lse [H, N]`` come zeroed, and rows of
    graphs are written."""
    _, heads, size = out.shape
    kind = out.dtype.type
    zero, scale, rest = kind(0), kind(size**-0.5), kind(1.0 / (1.0 - p))
    start = mix(np.uint64(seed) + mix(np.uint64(site) * STEP))
    least = np.uint64(p * _STEPS)
    lanes = np.empty(LANES, out.dtype)
    for g in range(len(starts) - 1):
        begin, end = starts[g], starts[g + 1]
        nodes = end - begin
        padded = -(-nodes // LANES) * LANES
        keys = np.empty((size, padded), out.dtype)
        weights, keep = np.empty(padded, out.dtype), np.empty(padded, out.dtype)
        for h in range(heads):
            _columns(rows, begin, end, 1, h, keys)
            for i in range(nodes):
                _products(rows[begin + i, 0, h], keys, scale, weights)
                for j in range(nodes, padded):
                    weights[j] = kind(-np.inf)
                best = _largest(weights, lanes)
                for j in range(padded):
                    weights[j] = exp(weights[j] - best)
                total = _total(weights, lanes, zero)
                lse[h, begin + i] = best + np.log(total)
                share = kind(1) / total
                if p > 0:
                    _keep(begin, i, heads, h, start, least, keep[:nodes])
                    for j in range(nodes):
                        weights[j] *= rest * keep[j]
                at = begin + i
                for j in range(nodes):
                    weight, r = share * weights[j], begin + j
                    for d in range(size):
                        out[at, h, d] += weight * rows[r, 2, h, d]


@kernel
def _backward(
    grad: Array,
    rows: Array,
    lse: Array,
    starts: Array,
    seed: int,
    site: int,
    p: float,
    found: Array,
) -> None:
    """``found``, shaped as ``rows``, comes zeroed; rows of graphs are written."""
    _, heads, size = grad.shape
    kind = grad.dtype.type
    zero, one, scale = kind(0), kind(1), kind(size**-0.5)
    rest = kind(1.0 / (1.0 - p))
    start = mix(np.uint64(seed) + mix(np.uint64(site) * STEP))
    least = np.uint64(p * _STEPS)
    lanes = np.empty(LANES, grad.dtype)
    for g in range(len(starts) - 1):
        begin, end = starts[g], starts[g + 1]
        nodes = end - begin
        padded = -(-nodes // LANES) * LANES
        keys, values = np.empty((size, padded), grad.dtype), np.empty((size, padded), grad.dtype)
        weights, slopes = np.empty(padded, grad.dtype), np.empty(padded, grad.dtype)
        keep, terms = np.empty(padded, grad.dtype), np.empty(padded, grad.dtype)
        for h in range(heads):
            _columns(rows, begin, end, 1, h, keys)
            _columns(rows, begin, end, 2, h, values)
            for i in range(nodes):
                at = begin + i
                _products(rows[at, 0, h], keys, scale, weights)
                _products(grad[at, h], values, one, slopes)
                height = lse[h, at]
                for j in range(padded):
                    weights[j] = exp(weights[j] - height)
                for j in range(nodes, padded):
                    weights[j] = zero
                if p > 0:
                    _keep(begin, i, heads, h, start, least, keep[:nodes])
                    for j in range(nodes):
                        keep[j] *= rest
                        slopes[j] *= keep[j]
                # Their mean, and not grad . out, which is that up to rounding: slopes add up to
                # nothing, so half as much of them is lost.
                for j in range(padded):
                    terms[j] = weights[j] * slopes[j]
                mean = _total(terms, lanes, zero)
                for j in range(padded):
                    slopes[j] = scale * weights[j] * (slopes[j] - mean)
                if p > 0:
                    for j in range(nodes):
                        weights[j] *= keep[j]
                for j in range(nodes):
                    slope, weight, r = slopes[j], weights[j], begin + j
                    for d in range(size):
                        found[at, 0, h, d] += slope * rows[r, 1, h, d]
                    for d in range(size):
                        found[r, 1, h, d] += slope * rows[at, 0, h, d]
                    for d in range(size):
                        found[r, 2, h, d] += weight * grad[at, h, d]


def forward(
    rows: Tensor, starts: Tensor, seed: Tensor | None, heads: int, site: int, p: float
) -> tuple[Tensor, Tensor]:
    """As the operator."""
    wide = rows.detach().to(torch.promote_types(rows.dtype, torch.float32))
    nodes, size = len(rows), rows.size(1) // (3 * heads)
    out, lse = wide.new_zeros(nodes, heads, size), wide.new_zeros(heads, nodes)
    given = wide.view(nodes, 3, heads, size).numpy(), starts.numpy(), *_drawn(seed, site, p)
    _forward(*given, out.numpy(), lse.numpy())
    return out.view(nodes, heads * size).to(rows.dtype), lse


def backward(
    grad: Tensor,
    rows: Tensor,
    out: Tensor,
    lse: Tensor,
    starts: Tensor,
    seed: Tensor | None,
    heads: int,
    site: int,
    p: float,
) -> Tensor:
    """As the operator."""
    nodes, size = len(rows), rows.size(1) // (3 * heads)
    found = torch.zeros(nodes, 3, heads, size, dtype=lse.dtype)
    _backward(
        grad.to(lse.dtype).view(nodes, heads, size).numpy(),
        rows.to(lse.dtype).view(nodes, 3, heads, size).numpy(),
        lse.numpy(),
        starts.numpy(),
        *_drawn(seed, site, p),
        found.numpy(),
    )
    return found.view(rows.shape).to(rows.dtype)


def _drawn(seed: Tensor | None, site: int, p: float) -> tuple[int, int, float]:
    """Nothing is drawn where nothing is dropped."""
    return (0, site, 0.0) if seed is None else (int(seed), site, p)
