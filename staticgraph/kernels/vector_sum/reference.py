"""Reference for :func:`vector_sum` in eager torch, as PaiNN's message is written."""

from __future__ import annotations

import torch
from torch import Tensor


def vector_sum_reference(
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    x: Tensor | None,
    src: Tensor,
    dst: Tensor,
    places: tuple[int, int, int],
) -> tuple[Tensor, Tensor | None]:
    """Computes ``vector_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.vector_sum`;
    ``places`` are the offsets of gate, along and scalar, -1 for none; edges in any order.
    """
    wide, width = torch.promote_types(vectors.dtype, torch.float32), vectors.size(2)
    rows = edge.to(wide) if x is None else edge.to(wide) * x.to(wide).index_select(0, src)
    gate, along, scalar = (rows[:, at : at + width] if at >= 0 else None for at in places)
    assert gate is not None
    message = vectors.to(wide).index_select(0, src) * gate[:, None]
    if along is not None and unit is not None:
        message = message + along[:, None] * unit.to(wide)[:, :, None]
    out = torch.zeros_like(vectors, dtype=wide).index_add(0, dst, message).to(vectors.dtype)
    if scalar is None:
        return out, None
    zero = out.new_zeros(len(vectors), width, dtype=wide)
    return out, zero.index_add(0, dst, scalar).to(vectors.dtype)
