"""The message of an edge: the sum of a source row, a target row and an edge row.

Each of the three may be missing, and many edges may read one row of a small table through their
``code``. This definition is shared by :mod:`staticgraph.kernels.edge_rows` and
:mod:`staticgraph.kernels.neighbour_reduce`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def message_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
) -> Tensor:
    """Computes ``source[src] + target[dst] + edge`` in eager torch, of the operands that are given.

    Returns:
        ``[E, F]`` in the accumulation dtype: float32, float64 for float64.
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
    return rows


def some_of(source: Tensor | None, target: Tensor | None, edge: Tensor | None) -> Tensor:
    """Returns the first of the three operands that is given."""
    some = source if source is not None else target if target is not None else edge
    assert some is not None
    return some
