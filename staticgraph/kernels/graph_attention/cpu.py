"""``graph_attention`` on the CPU: a loop over the graphs, torch's products inside.

Here for batches that move to a CPU and for tests; no CPU path of attention is chosen for it. A
weight's fate is the hash of :mod:`staticgraph.kernels.dropout_sum`, one key a row and head.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from staticgraph.kernels.jit import kernel
from staticgraph.packing.random import STEP, mix
from staticgraph.store.columns import Array

_TOP = np.uint64(40)
# Of the hash 24 bits decide, as many as a float32 between 0 and 1 has.
_STEPS = 1 << 24


@kernel
def _fill(first: int, seed: int, site: int, p: float, out: Array) -> None:
    heads, queries, keys = out.shape
    least = np.uint64(p * _STEPS)
    start = mix(np.uint64(seed) + mix(np.uint64(site) * STEP))
    for h in range(heads):
        for i in range(queries):
            key = mix(start + np.uint64((first + i) * heads + h) * STEP)
            for j in range(keys):
                out[h, i, j] = (mix(key + np.uint64(j) * STEP) >> _TOP) >= least


def kept(first: int, nodes: int, heads: int, seed: int, site: int, p: float) -> Tensor:
    """``[H, n, n]`` bool: the weights that a graph of ``nodes`` keeps, its first row given."""
    out = np.empty((heads, nodes, nodes), np.bool_)
    _fill(first, seed, site, p, out)
    return torch.from_numpy(out)


def forward(
    rows: Tensor, starts: Tensor, seed: Tensor | None, heads: int, site: int, p: float
) -> tuple[Tensor, Tensor]:
    """As the operator."""
    wide, lse = _wide(rows, heads)
    out = wide.new_zeros(len(rows), heads, wide.size(-1))
    for begin, end, keep in _graphs(starts, seed, heads, site, p):
        q, k, v = wide[begin:end].unbind(1)
        scores = _scores(q, k)
        lse[:, begin:end] = scores.logsumexp(-1)
        weights = _dropped((scores - lse[:, begin:end, None]).exp(), keep, p)
        out[begin:end] = torch.einsum("hij,jhd->ihd", weights, v)
    return out.flatten(1).to(rows.dtype), lse


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
    wide, _ = _wide(rows, heads)
    grad, out = (t.to(wide.dtype).view(len(rows), heads, -1) for t in (grad, out))
    found = torch.zeros_like(wide)
    for begin, end, keep in _graphs(starts, seed, heads, site, p):
        (q, k, v), own = wide[begin:end].unbind(1), grad[begin:end]
        weights = (_scores(q, k) - lse[:, begin:end, None]).exp()
        by_weight = _dropped(torch.einsum("ihd,jhd->hij", own, v), keep, p)
        mean = torch.einsum("ihd,ihd->hi", own, out[begin:end])[..., None]
        by_score = weights * (by_weight - mean) * q.size(-1) ** -0.5
        found[begin:end, 0] = torch.einsum("hij,jhd->ihd", by_score, k)
        found[begin:end, 1] = torch.einsum("hij,ihd->jhd", by_score, q)
        found[begin:end, 2] = torch.einsum("hij,ihd->jhd", _dropped(weights, keep, p), own)
    return found.view(rows.shape).to(rows.dtype)


def _wide(rows: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """``[N, 3, H, D]`` in the precision of the sums, and zeros for the log-sum-exps ``[H, N]``."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return wide.view(len(rows), 3, heads, -1), wide.new_zeros(heads, len(rows))


def _graphs(
    starts: Tensor, seed: Tensor | None, heads: int, site: int, p: float
) -> Iterator[tuple[int, int, Tensor | None]]:
    """First row, last row and the weights to keep of every graph that has nodes."""
    drawn = None if seed is None else int(seed)
    for begin, end in pairwise(starts.tolist()):
        if begin < end:
            keep = None if drawn is None else kept(begin, end - begin, heads, drawn, site, p)
            yield begin, end, keep


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """``[n, H, D]`` twice -> ``[H, n, n]``."""
    return torch.einsum("ihd,jhd->hij", q, k) * q.size(-1) ** -0.5


def _dropped(values: Tensor, keep: Tensor | None, p: float) -> Tensor:
    return values if keep is None else values * keep / (1 - p)
