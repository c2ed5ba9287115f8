"""What :func:`edge_rows` means, in eager torch."""

from __future__ import annotations

import torch
from torch import Tensor


def edge_rows_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
) -> Tensor:
    """Differentiable, on any device; sums in float32 (float64 for float64).

    Args: as :func:`staticgraph.kernels.edge_rows`; edges in any order.
    """
    parts = []
    if source is not None:
        parts.append(source.index_select(0, src))
    if target is not None:
        parts.append(target.index_select(0, dst))
    if edge is not None:
        parts.append(edge if code is None else edge.index_select(0, code))
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    rows = parts[0].to(wide)
    for part in parts[1:]:
        rows = rows + part.to(wide)
    return rows.to(parts[0].dtype)
