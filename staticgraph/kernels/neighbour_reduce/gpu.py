"""``neighbour_reduce`` on CUDA: stock operations for the rows of all edges, segment kernels for the
reductions.

Sums and maxima go by row pointer (:mod:`staticgraph.kernels.segments`), so the order of additions
is fixed. No rewrite uses this path: a compiler fuses the operations that lead to a sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows import edge_rows_reference
from staticgraph.kernels.edge_rows import gpu as edge_rows
from staticgraph.kernels.neighbour_reduce.reference import LEAST_VARIANCE, activated
from staticgraph.kernels.segments import gpu as segments

Operands = tuple[Tensor | None, Tensor | None, Tensor | None]


class EdgeReductions:
    """The ends of the edges, and reductions over the edges into each node."""

    src: Tensor
    dst: Tensor
    row_ptr: Tensor

    def __init__(self, src: Tensor, dst: Tensor, row_ptr: Tensor) -> None:
        self.src, self.dst, self.row_ptr = src, dst, row_ptr

    def sum(self, rows: Tensor, mean: bool = False) -> Tensor:
        """Sums, or averages, rows over each node's edges."""
        return segments.sum_forward(rows.contiguous(), self.row_ptr, mean)

    def max(self, rows: Tensor) -> Tensor:
        """Takes the maximum of rows over each node's edges; zero without edges."""
        return segments.max_forward(rows.contiguous(), self.row_ptr)

    def variance(self, rows: Tensor) -> Tensor:
        """Computes the variance of rows over each node's edges, around the node's own mean."""
        return self.sum((rows - self.of(self.sum(rows, mean=True))).square(), mean=True)

    def of(self, values: Tensor) -> Tensor:
        """Gathers the values of each edge's destination."""
        return values.index_select(0, self.dst)


def forward(
    operands: Operands,
    code: Tensor | None,
    edges: EdgeReductions,
    activation: str,
    slope: float,
    names: list[str],
    towers: int,
) -> Tensor:
    """Runs forward, with the result in the accumulation dtype."""
    rows = activated(_rows(operands, code, edges), activation, slope)
    found = [_reduced(rows, edges, name) for name in names]
    together = torch.stack([one.view(len(one), towers, -1) for one in found])
    return together.permute(2, 1, 0, 3).reshape(towers, together.size(1), -1)


def _rows(operands: Operands, code: Tensor | None, edges: EdgeReductions) -> Tensor:
    some = next(one for one in operands if one is not None)
    wide = torch.promote_types(some.dtype, torch.float32)
    given = [None if one is None else one.to(wide) for one in operands]
    return edge_rows_reference(given[0], given[1], given[2], code, edges.src, edges.dst)


def _reduced(rows: Tensor, edges: EdgeReductions, name: str) -> Tensor:
    if name in ("sum", "mean"):
        return edges.sum(rows, name == "mean")
    if name == "max":
        return edges.max(rows)
    if name == "min":
        return -edges.max(-rows)
    variance = edges.variance(rows)
    return variance if name == "var" else torch.where(_spreads(variance), variance.sqrt(), 0)


def _spreads(variance: Tensor) -> Tensor:
    return variance > LEAST_VARIANCE


def backward(
    grad: Tensor,
    out: Tensor,
    operands: Operands,
    code: Tensor | None,
    edges: EdgeReductions,
    ends: tuple[Tensor, Tensor],
    activation: str,
    slope: float,
    names: list[str],
    towers: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs backward; ``ends`` are ``col_ptr`` and ``transpose``."""
    before = _rows(operands, code, edges)
    rows = activated(before, activation, slope)
    given = torch.zeros_like(rows)
    width = rows.size(1) // towers
    for place, name in enumerate(names):
        mine, found = (
            value[:, :, place * width : (place + 1) * width].transpose(0, 1).flatten(1).to(rows)
            for value in (grad, out)
        )
        given += _returned(mine, found, rows, edges, name)
    given = given * _rise(before, activation, slope)
    dtype = next(one for one in operands if one is not None).dtype
    wants = operands[0] is not None, operands[1] is not None, operands[2] is not None
    entries = 0 if operands[2] is None else operands[2].size(0)
    parts = edge_rows.backward(given, code, edges.row_ptr, *ends, entries, wants)
    by_edge = given if operands[2] is not None and code is None else parts[2]
    return parts[0].to(dtype), parts[1].to(dtype), by_edge.to(dtype)


def _returned(
    grad: Tensor, found: Tensor, rows: Tensor, edges: EdgeReductions, name: str
) -> Tensor:
    """Computes the gradient of each message from one reduction."""
    if name == "sum":
        return edges.of(grad)
    share = 1 / edges.row_ptr.diff().clamp(min=1).to(rows.dtype)[:, None]
    if name == "mean":
        return edges.of(share * grad)
    if name in ("min", "max"):
        best = (rows == edges.of(found)).to(rows.dtype)
        count = edges.sum(best) + (found == 0).to(rows.dtype)
        return best * edges.of(torch.where(count > 0, grad / count, 0))
    away = rows - edges.of(edges.sum(rows, mean=True))
    if name == "var":
        return away * edges.of(2 * share * grad)
    return away * edges.of(torch.where(found > 0, share * grad / found, 0))


def _rise(before: Tensor, activation: str, slope: float) -> Tensor | float:
    if activation == "none":
        return 1.0
    if activation == "relu":
        return (before > 0).to(before.dtype)
    if activation == "leaky_relu":
        return torch.where(before > 0, 1.0, slope).to(before.dtype)
    share = torch.sigmoid(before)
    if activation == "sigmoid":
        return share * (1 - share)
    return share * (1 + before * (1 - share))
