"""Reference for :func:`neighbour_max` in eager torch."""

from __future__ import annotations

from torch import Tensor


def neighbour_max_reference(x: Tensor, edge: Tensor | None, src: Tensor, dst: Tensor) -> Tensor:
    """Computes ``neighbour_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.neighbour_max`; edges in any order.
    """
    rows = x.index_select(0, src)
    rows = rows if edge is None else (rows + edge).relu()
    into = dst[:, None].expand_as(rows)
    return rows.new_zeros(x.shape).scatter_reduce(0, into, rows, "amax", include_self=False)
