"""``graph_attention`` on the CPU: a loop over graphs and heads per direction, without padding.

Molecules have a dozen nodes. Attention in padded blocks computes as many entries again for padding,
and pays for a torch product, mask and softmax around a few microseconds of arithmetic. Here every
product is a row of weights times a small matrix, vectorised (:mod:`staticgraph.kernels.lanes`);
entries after the last key of a graph get weight zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.graph_attention import cpu_backward
from staticgraph.kernels.graph_attention.cpu_layout import (
    columns_of,
    drawn_from,
    filled,
    hide,
    keep_of,
    most_nodes,
    rows_of,
)
from staticgraph.kernels.lanes import combine, largest, total
from staticgraph.kernels.threads import on_threads, portion, threads_for
from staticgraph.store.columns import Array


@kernel
def _fill(first: int, seed: int, site: int, p: float, out: Array) -> None:
    heads, queries, _ = out.shape
    start, least = drawn_from(seed, site, p)
    for h in range(heads):
        for i in range(queries):
            keep_of(first, i, heads, h, start, least, out[h, i])


def kept(first: int, nodes: int, heads: int, seed: int, site: int, p: float) -> Tensor:
    """Returns the dropout mask ``[H, n, n]`` bool of a graph of ``nodes`` rows that begins at row
    ``first``."""
    out = np.empty((heads, nodes, nodes), np.bool_)
    _fill(first, seed, site, p, out)
    return torch.from_numpy(out)


@kernel_part
def _forward(
    thread: int,
    threads: int,
    rows: Array,
    starts: Array,
    seed: int,
    site: int,
    p: float,
    out: Array,
    lse: Array,
) -> None:
    """Handles one thread's share of the graphs."""
    _, heads, size = out.shape
    kind, flat = out.dtype.type, rows.reshape(-1)
    one, scale, rest = kind(1), kind(size**-0.5), kind(1.0 / (1.0 - p))
    start, least = drawn_from(seed, site, p)
    most, wide = most_nodes(starts), filled(size)
    keys, copied = np.empty(size * most, out.dtype), np.empty(most * wide, out.dtype)
    weights, keep = np.empty(most, out.dtype), np.empty(most, out.dtype)
    found, nothing = np.empty(wide, out.dtype), np.zeros(wide, out.dtype)
    behind = np.zeros(most, out.dtype)
    low, high = portion(len(starts) - 1, 1, thread, threads)
    for g in range(low, high):
        begin, end = starts[g], starts[g + 1]
        nodes = end - begin
        padded = filled(nodes)
        hide(behind, nodes, padded)
        for h in range(heads):
            columns_of(rows, begin, end, 1, h, scale, keys)
            values, origin, by = rows_of(rows, begin, end, 2, h, copied)
            for i in range(nodes):
                at = begin + i
                query = (at * 3 * heads + h) * size
                combine(flat, query, 1, keys, 0, padded, size, weights, 0, padded, behind, 0)
                best = largest(weights, 0, padded)
                for j in range(padded):
                    weights[j] = exp(weights[j] - best)
                whole = total(weights, 0, padded)
                lse[h, at] = best + np.log(whole)
                if p > 0:
                    keep_of(begin, i, heads, h, start, least, keep[:nodes])
                    for j in range(nodes):
                        weights[j] *= rest * keep[j]
                combine(weights, 0, 1, values, origin, by, nodes, found, 0, wide, nothing, 0)
                share = one / whole
                for d in range(size):
                    out[at, h, d] = share * found[d]


_forwards = on_threads(_forward)


@kernel
def _on_threads(
    rows: Array,
    starts: Array,
    seed: int,
    site: int,
    p: float,
    out: Array,
    lse: Array,
    threads: int,
) -> None:
    """Runs forward on all threads.

    ``rows`` are ``[N, 3, H, D]``; ``out [N, H, D]`` and ``lse [H, N]`` must be zeroed, and only
    rows that belong to a graph are written.
    """
    _forwards(threads, (rows, starts, seed, site, p, out, lse))


def forward(
    rows: Tensor, starts: Tensor, seed: Tensor | None, heads: int, site: int, p: float
) -> tuple[Tensor, Tensor]:
    """Runs forward."""
    wide = rows.detach().to(torch.promote_types(rows.dtype, torch.float32))
    nodes, size = len(rows), rows.size(1) // (3 * heads)
    out, lse = wide.new_zeros(nodes, heads, size), wide.new_zeros(heads, nodes)
    given = wide.view(nodes, 3, heads, size).numpy(), starts.numpy(), *_drawn(seed, site, p)
    _on_threads(*given, out.numpy(), lse.numpy(), threads_for(rows.numel()))
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
    """Runs backward."""
    nodes, size = len(rows), rows.size(1) // (3 * heads)
    found = torch.zeros(nodes, 3, heads, size, dtype=lse.dtype)
    cpu_backward.backward(
        grad.to(lse.dtype).view(nodes, 1, heads, size).numpy(),
        rows.to(lse.dtype).view(nodes, 3, heads, size).numpy(),
        lse.numpy(),
        starts.numpy(),
        *_drawn(seed, site, p),
        found.numpy(),
        threads_for(rows.numel()),
    )
    return found.view(rows.shape).to(rows.dtype)


def _drawn(seed: Tensor | None, site: int, p: float) -> tuple[int, int, float]:
    """Returns seed, site and dropout probability; without a seed nothing is dropped."""
    return (0, site, 0.0) if seed is None else (int(seed), site, p)
