"""Reference for ``varlen_attention``: a loop over the graphs, forward and backward, in eager
torch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def forward(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Computes ``[N, heads, D]`` from three such tensors; rows after the last start are zero."""
    out = v.new_zeros(v.shape)
    for begin, end in pairwise(starts.tolist()):
        weights = _weights(q[begin:end], k[begin:end])
        out[begin:end] = torch.einsum("hij,jhd->ihd", weights, v[begin:end])
    return out


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of :func:`forward` with respect to ``q``, ``k`` and ``v``."""
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = (t.new_zeros(t.shape) for t in (q, k, v))
    for begin, end in pairwise(starts.tolist()):
        rows = slice(begin, end)
        weights = _weights(q[rows], k[rows])
        dv[rows] = torch.einsum("hij,ihd->jhd", weights, grad[rows])
        by_weight = torch.einsum("ihd,jhd->hij", grad[rows], v[rows])
        by_score = weights * (by_weight - (weights * by_weight).sum(-1, keepdim=True))
        dq[rows] = torch.einsum("hij,jhd->ihd", by_score, k[rows]) * scale
        dk[rows] = torch.einsum("hij,ihd->jhd", by_score, q[rows]) * scale
    return dq, dk, dv


def _weights(q: Tensor, k: Tensor) -> Tensor:
    """Returns the attention weights ``[heads, n, n]`` of two ``[n, heads, D]``, each row summing to
    one."""
    return (torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
