"""Reference for :func:`edge_rows` in eager torch."""

from __future__ import annotations

from torch import Tensor

from staticgraph.kernels.message import message_reference, some_of


def edge_rows_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
) -> Tensor:
    """Computes ``edge_rows``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.edge_rows`;
    edges in any order.
    """
    rows = message_reference(source, target, edge, code, src, dst)
    return rows.to(some_of(source, target, edge).dtype)
