"""``neighbour_reduce`` as a torch operator: CPU kernel, shapes, derivative. CPU only: for CUDA a
compiler fuses the operations that lead to each reduction.

A custom layer may sum ``silu(x[src] + e)``; PNA takes mean, minimum, maximum and standard deviation
of one message. In stock operations each of these is a gather, an activation and a scatter, and
twice that in backward, over tensors of all edges. Here a message is computed, used for every
reduction and discarded.

Source: Corso et al. 2020, arXiv 2004.05718.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.kernels.message import codes_of, some_of
from staticgraph.kernels.neighbour_reduce import cpu
from staticgraph.kernels.neighbour_reduce.reference import ACTIVATIONS, REDUCTIONS
from staticgraph.kernels.register import asked_of, differentiable_once, operator
from staticgraph.text.how_many import how_many


def _on_cpu(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    activation: int,
    slope: float,
    kinds: Sequence[int],
    towers: int,
) -> Tensor:
    some = some_of(source, target, edge)
    wide = torch.promote_types(some.dtype, torch.float32)
    out = torch.empty(_shape(some, row_ptr, kinds, towers), dtype=wide)
    operands = source, target, edge
    read = _read(operands, code, src, row_ptr, activation, slope, kinds)
    cpu.forward(*read, *[_parted(out, kinds)])
    return out


def _backward_on_cpu(grad, out, source, target, edge, code, src, dst, row_ptr, *rest):
    _, _, activation, slope, kinds, _ = rest
    operands = source, target, edge
    dtype = some_of(*operands).dtype
    wide = torch.promote_types(dtype, torch.float32)
    found = (
        _gradient(source, wide, zero=True),
        _gradient(target, wide),
        _gradient(edge, wide, zero=code is not None),
    )
    cpu.backward(
        _parted(grad.to(wide), kinds),
        _parted(out, kinds),
        *_read(operands, code, src, row_ptr, activation, slope, kinds),
        *(one.numpy() for one in found),
    )
    return tuple(one.to(dtype) for one in found)


def _read(
    operands: tuple[Tensor | None, Tensor | None, Tensor | None],
    code: Tensor | None,
    src: Tensor,
    row_ptr: Tensor,
    activation: int,
    slope: float,
    kinds: Sequence[int],
) -> tuple[Any, ...]:
    """Returns the inputs that both loops share, in the order of their arguments."""
    some = some_of(*operands)
    wide = torch.promote_types(some.dtype, torch.float32)
    return (
        *(_array(one, wide, some.size(1)) for one in operands),
        codes_of(code),
        src.numpy(),
        row_ptr.numpy(),
        activation,
        slope,
        np.asarray(kinds),
        *(one is not None for one in operands),
    )


_OPERANDS = (
    "Tensor? source, Tensor? target, Tensor? edge, Tensor? code, Tensor src, Tensor dst, "
    "Tensor row_ptr, Tensor col_ptr, Tensor transpose, int activation, float slope, int[] kinds, "
    "int towers"
)


def _fake(source, target, edge, code, src, dst, row_ptr, *rest):
    some, (kinds, towers) = some_of(source, target, edge), rest[-2:]
    wide = torch.promote_types(some.dtype, torch.float32)
    return some.new_empty(_shape(some, row_ptr, kinds, towers), dtype=wide)


def _fake_backward(grad, out, *operands):
    nothing = grad.new_empty(0, 0)
    return tuple(nothing if one is None else torch.empty_like(one) for one in operands[:3])


_backward = operator(
    f"neighbour_reduce_backward(Tensor grad, Tensor out, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=None,
    fake=_fake_backward,
)
_forward = operator(f"neighbour_reduce({_OPERANDS}) -> Tensor", cpu=_on_cpu, cuda=None, fake=_fake)


class NeighbourReduce(torch.autograd.Function):
    """Autograd function of ``neighbour_reduce``; backward recomputes the messages, and uses the
    results in the accumulation dtype."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's reductions side by side, in the inputs' dtype."""
        *tensors, activation, slope, kinds, towers = inputs
        wide = _forward(*tensors, activation, slope, kinds, towers)
        ctx.save_for_backward(wide, *tensors)
        ctx.options = activation, slope, kinds, towers
        dtype = some_of(*tensors[:3]).dtype
        return wide if wide.dtype == dtype else wide.to(dtype)

    @staticmethod
    @differentiable_once("neighbour_reduce")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of source, target and edge that are needed."""
        found = _backward(grads[0].contiguous(), *ctx.saved_tensors, *ctx.options)
        return *asked_of(ctx, found), *(None,) * 10


def neighbour_reduce(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
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
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
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
    return NeighbourReduce.apply(
        *(None if one is None else one.contiguous() for one in (source, target, edge)),
        code,
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        ACTIVATIONS.index(activation),
        slope,
        [REDUCTIONS.index(name) for name in reductions],
        towers,
    )


def _shape(some: Tensor, row_ptr: Tensor, kinds: Sequence[int], towers: int) -> list[int]:
    return [towers, row_ptr.size(0) - 1, len(kinds) * some.size(1) // towers]


def _gradient(value: Tensor | None, wide: torch.dtype, zero: bool = False) -> Tensor:
    if value is None:
        return torch.empty(0, 0, dtype=wide)
    return (torch.zeros if zero else torch.empty)(value.shape, dtype=wide)


def _array(value: Tensor | None, wide: torch.dtype, width: int) -> Any:
    """Returns the tensor as a NumPy array; a row of zeros for None."""
    if value is None:
        return torch.zeros(1, width, dtype=wide).numpy()
    return value.detach().to(wide).numpy()


def _parted(value: Tensor, kinds: Sequence[int]) -> Any:
    """Reshapes ``[T, N, R * F / T]`` to a ``[T, N, R, F / T]`` NumPy array."""
    towers, nodes, columns = value.shape
    return value.view(towers, nodes, len(kinds), columns // len(kinds)).numpy()
