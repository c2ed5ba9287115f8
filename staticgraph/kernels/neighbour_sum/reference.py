"""Reference for :func:`neighbour_sum` in eager torch: gather, transform, sum by destination."""

from __future__ import annotations

import torch
from torch import Tensor

Transform = str
TRANSFORMS = ("copy", "multiply", "relu_add")
# As numbers; the last is "multiply" by one number per edge whose gradient is not needed.
COPY, MULTIPLY, RELU_ADD, WEIGHED = range(4)


def neighbour_sum_reference(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    self_eps: Tensor | None,
    transform: Transform,
    mean: bool,
    weight: Tensor | None = None,
) -> Tensor:
    """Computes ``neighbour_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.neighbour_sum`; edges in any order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    values = x.to(wide)
    rows = values.index_select(0, src)
    if edge is not None:
        other = edge.to(wide)
        other = other if code is None else other.index_select(0, code)
        other = other.unsqueeze(-1) if other.dim() == 1 else other
        rows = (rows + other).relu() if transform == "relu_add" else rows * other
    if weight is not None:
        rows = rows * weight.to(wide).unsqueeze(-1)
    out = torch.zeros_like(values).index_add(0, dst, rows)
    if mean:
        degree = torch.zeros(len(x), dtype=wide, device=x.device)
        degree = degree.index_add(0, dst, torch.ones_like(dst, dtype=wide))
        out = out / degree.clamp(min=1).unsqueeze(-1)
    if self_eps is not None:
        out = out + (1 + self_eps.to(wide)) * values
    return out.to(x.dtype)
