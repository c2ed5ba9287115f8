"""``neighbour_reduce`` as a torch operator: reference, registration, shapes. CPU only: for CUDA a
compiler fuses the operations that lead to each reduction.

A custom layer may sum ``silu(x[src] + e)``; PNA takes mean, minimum, maximum and standard deviation
of one message. In stock operations each of these is a gather, an activation and a scatter, and
twice that in backward, over tensors of all edges. Here a message is computed, used for every
reduction and discarded.

Source: Corso et al. 2020, arXiv 2004.05718.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.cpu_loop import cast
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.message import message_reference, some_of
from staticgraph.kernels.neighbour_reduce import cpu
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import contiguous, empty_like, wide_dtype
from staticgraph.text.how_many import how_many

ACTIVATIONS = ("none", "relu", "leaky_relu", "silu", "sigmoid")
REDUCTIONS = ("sum", "mean", "min", "max", "var", "std")
# Up to this variance PyG's standard deviation is zero, and has no gradient.
LEAST_VARIANCE = 1e-5


def activated(rows: Tensor, activation: str, slope: float) -> Tensor:
    """Applies one of :data:`ACTIVATIONS` to ``rows``."""
    if activation == "leaky_relu":
        return F.leaky_relu(rows, slope)
    functions = {"relu": torch.relu, "silu": F.silu, "sigmoid": torch.sigmoid}
    return rows if activation == "none" else functions[activation](rows)


def neighbour_reduce_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    nodes: int,
    activation: str,
    slope: float,
    reductions: Sequence[str],
    towers: int,
) -> Tensor:
    """Computes ``neighbour_reduce``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.neighbour_reduce`; edges in any order.
    """
    rows = activated(message_reference(source, target, edge, code, src, dst), activation, slope)
    found = [_reduced(rows, dst, nodes, reduction) for reduction in reductions]
    width = rows.size(1) // towers
    together = torch.stack([one.view(nodes, towers, width) for one in found])
    dtype = some_of(source, target, edge).dtype
    return together.permute(2, 1, 0, 3).reshape(towers, nodes, -1).to(dtype)


def _reduced(rows: Tensor, dst: Tensor, nodes: int, reduction: str) -> Tensor:
    zeros = rows.new_zeros(nodes, rows.size(1))
    if reduction == "sum":
        return zeros.index_add(0, dst, rows)
    if reduction in ("min", "max"):
        index = dst[:, None].expand_as(rows)
        return zeros.scatter_reduce(0, index, rows, f"a{reduction}", include_self=False)
    count = rows.new_zeros(nodes).index_add(0, dst, torch.ones_like(rows[:, 0])).clamp(min=1)
    mean = zeros.index_add(0, dst, rows) / count[:, None]
    if reduction == "mean":
        return mean
    away = (rows - mean.index_select(0, dst)).square()
    variance = zeros.index_add(0, dst, away) / count[:, None]
    if reduction == "var":
        return variance
    out = variance.clamp(min=LEAST_VARIANCE).sqrt()
    return out.masked_fill(out <= math.sqrt(LEAST_VARIANCE), 0.0)


_OPERANDS = (
    "Tensor? source, Tensor? target, Tensor? edge, Tensor? code, Tensor[] edges, int activation, "
    "float slope, int[] kinds, int towers"
)


def _fake(source, target, edge, code, edges, activation, slope, kinds, towers):
    some, nodes = some_of(source, target, edge), edges[2].size(0) - 1
    shape = towers, nodes, len(kinds) * some.size(1) // towers
    return some.new_empty(shape, dtype=wide_dtype(some))


_neighbour_reduce = operator(
    f"neighbour_reduce({_OPERANDS}) -> Tensor",
    cpu=cpu.forward,
    cuda=None,
    fake=_fake,
    backward=operator(
        f"neighbour_reduce_backward(Tensor grad, Tensor out, {_OPERANDS}) "
        "-> (Tensor dsource, Tensor dtarget, Tensor dedge)",
        cpu=cpu.backward,
        cuda=None,
        fake=lambda grad, out, *rest: tuple(empty_like(value, grad) for value in rest[:3]),
    ),
)


def neighbour_reduce(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    edges: Edges,
    *,
    reductions: Sequence[str],
    code: Tensor | None = None,
    activation: str = "none",
    slope: float = 0.01,
    towers: int = 1,
) -> Tensor:
    """Reduces one message per edge, ``activation(source[src[e]] + target[i] + edge[e])``, in
    several ways at once; on a CPU.

    The reductions are over the edges ``e`` into each node ``i``.

    Args:
        source: ``[N, F]``, a node's term in the messages it sends; None for nothing.
        target: ``[N, F]``, a node's term in the messages it receives; None for nothing.
        edge: ``[E, F]``, an edge's term; None for nothing. At least one of the three is required.
        edges: their ends and pointers.
        reductions: names from :data:`staticgraph.kernels.neighbour_reduce.REDUCTIONS`: ``sum``,
            ``mean``, ``min``, ``max``, ``var`` (of the population) and ``std``, which is 0 up to a
            variance of 1e-5 as in PyG. Tied smallest or largest messages share the gradient as in
            :func:`staticgraph.kernels.segment_max`.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, F]``.
        activation: a name from :data:`staticgraph.kernels.neighbour_reduce.ACTIVATIONS`: ``none``,
            ``relu``, ``leaky_relu``, ``silu`` or ``sigmoid``.
        slope: of the leaky ReLU below zero.
        towers: number ``T`` of equal parts of the columns; the results of each part are contiguous.

    Returns:
        ``[T, N, R * F / T]``: for each tower and node the ``R`` reductions one after another, in
        the dtype of the operands; zero for a node without edges. Half precisions are accumulated in
        float32. Differentiable once. Bitwise deterministic.

    Raises:
        ValueError: no operand or no reduction is given, a name is unknown, or the towers do not
            divide the columns.
    """
    given = [one for one in (source, target, edge) if one is not None]
    if not given:
        raise ValueError("a message of nothing: give source, target or edge")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r}; choose one of {', '.join(ACTIVATIONS)}")
    unknown = set(reductions) - set(REDUCTIONS)
    if not reductions or unknown:
        asked = ", ".join(sorted(unknown)) if reductions else "none"
        raise ValueError(f"reductions: {asked}; choose one of {', '.join(REDUCTIONS)}")
    if given[0].size(1) % towers:
        raise ValueError(
            f"{how_many(given[0].size(1), 'column')} cannot be cut into {towers} towers of equal "
            "width"
        )
    out = _neighbour_reduce(
        *contiguous(source, target, edge, code),
        edges,
        ACTIVATIONS.index(activation),
        slope,
        [REDUCTIONS.index(name) for name in reductions],
        towers,
    )
    return cast(out, given[0].dtype)
