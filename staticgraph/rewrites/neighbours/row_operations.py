"""Which operations of torch compute every row from that row alone, and how programs express them.

The problem: one operation has many forms in Python, and more operations are made of others. The
idea: a call is run on tensors without memory while what reaches the dispatcher is noted: a short
list of operations of ATen, each in one form. An operation that is not in :data:`OPERATIONS`, or
that crosses rows, is no row operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.kernels.neighbours.program import Builder
from staticgraph.rewrites.captured_graph.canonical_ops import Call, shape


class NotByRow(Exception):
    """An operation that does not compute rows from rows; its name, as ATen knows it."""


class _Call(NamedTuple):
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class _Noting(TorchDispatchMode):
    """Notes every operation that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func._schema.name, args, kwargs or {}, result))
        return result


class RowCalls(NamedTuple):
    """What a node of the graph calls.

    Attributes:
        operands: the tensors that its operands stand for, by node.
        calls: operations of ATen, in order.
        result: a tensor or a tuple of them.
    """

    operands: dict[Call, Tensor]
    calls: list[_Call]
    result: Any


_ROOMS = ("torch", "_operator", "operator")


def row_calls(node: Call) -> RowCalls | None:
    """What a node calls, found on tensors without memory; None if that is not known."""
    if node.op == "call_function":
        module = getattr(node.target, "__module__", None) or type(node.target).__module__
        if not module.startswith(_ROOMS) and module != "builtins":
            return None
    elif node.op != "call_method":
        return None
    operands: dict[Call, Tensor] = {}

    def plain(operand: Node) -> Any:
        """The stand-in of an operand."""
        example = operand.meta.get("example_value")
        if isinstance(example, Tensor):
            if operand not in operands:
                operands[operand] = torch.empty(example.shape, dtype=example.dtype, device="meta")
            return operands[operand]
        if isinstance(example, (tuple, list)) and all(isinstance(each, Tensor) for each in example):
            raise NotByRow("a tuple")
        return example

    try:
        args, kwargs = map_arg((node.args, node.kwargs), plain)
        with torch.no_grad(), _Noting() as noted:
            if node.op == "call_method":
                result = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                result = node.target(*args, **kwargs)
    except Exception:  # whatever an operation says of tensors without memory
        return None
    return RowCalls(operands, noted.calls, result)


def leaf(node: Call, calls: RowCalls, rows: int, place: str) -> tuple[str, tuple[int, ...]]:
    """Where the rows of an operand of calls over rows are, and their shape."""
    sizes = shape(node) or ()
    broadcast = _is_broadcast(calls, calls.operands[node])
    if sizes and sizes[0] == rows and not broadcast:
        return place, sizes[1:]
    return "all", sizes[1:] if sizes[:1] == (1,) and not broadcast else sizes


def _is_broadcast(calls: RowCalls, operand: Tensor) -> bool:
    """Whether the call that reads an operand first takes it next to one of more dimensions, so that
    its own first one is not that of rows."""
    for call in calls.calls:
        tensors = [argument for argument in call.args if isinstance(argument, Tensor)]
        if any(argument is operand for argument in tensors):
            return operand.dim() < max(argument.dim() for argument in tensors)
    return False


def write(
    builder: Builder, calls: RowCalls, rows: int, places: dict[Call, int]
) -> int | tuple[int, ...]:
    """Writes what a node calls to a program; returns the places of its results.

    Args:
        rows: number of rows, the first dimension of every tensor.
        places: the values of the operands that have rows, and of those that have none.

    Raises:
        NotByRow: an operation is none of rows.
    """
    known = {id(stand): places[node] for node, stand in calls.operands.items()}
    writer = _Writer(builder, rows, known)
    for call in calls.calls:
        outs = writer.write(call)
        results = call.result if isinstance(call.result, (tuple, list)) else (call.result,)
        for out, result in zip(outs, results, strict=True):
            if result.dim() == 0 or result.size(0) != rows:
                raise NotByRow(call.name)
            if builder.shape(out) != tuple(result.shape[1:]):
                out = builder.expand(out, tuple(result.shape[1:]))
            known[id(result)] = out
    tensors = calls.result if isinstance(calls.result, (tuple, list)) else (calls.result,)
    if any(not isinstance(tensor, Tensor) or id(tensor) not in known for tensor in tensors):
        raise NotByRow("no tensor")
    outs = tuple(known[id(tensor)] for tensor in tensors)
    return outs if isinstance(calls.result, (tuple, list)) else outs[0]


class _Writer:
    """Writes operations of ATen."""

    def __init__(self, builder: Builder, rows: int, known: dict[int, int]) -> None:
        self.b: Builder = builder
        self.rows: int = rows
        self.known: dict[int, int] = known

    def write(self, call: _Call) -> tuple[int, ...]:
        """Writes one, and returns its results."""
        operation = OPERATIONS.get(call.name.removeprefix("aten::"))
        if operation is None:
            raise NotByRow(call.name)
        try:
            out = operation(self, *call.args, **call.kwargs)
        except (TypeError, ValueError, KeyError) as error:
            raise NotByRow(call.name) from error
        if operation in _OF_NUMBERS and call.result.dtype is torch.bool:
            out = self.b.point("not", self.b.point("eq", out, 0.0))
        return out if isinstance(out, tuple) else (out,)

    def read_operand(self, value: Any) -> int | float:
        """The place of a tensor, of a condition as ones and zeros, or a number as constant."""
        if isinstance(value, Tensor):
            place = self.known[id(value)]
            return self.b.point("where", place, 1.0, 0.0) if value.dtype is torch.bool else place
        if isinstance(value, (bool, int, float)):
            return float(value)
        raise NotByRow(type(value).__name__)

    def point(self, operation: str, *operands: Any) -> int:
        """A pointwise operation of tensors and numbers."""
        return self.b.point(operation, *map(self.read_operand, operands))

    def logical(self, operation: str, *operands: Any) -> int:
        """A pointwise operation of conditions."""
        return self.b.point(operation, *(_place(self, operand) for operand in operands))

    def dim(self, x: Tensor, dim: int) -> int:
        """A dimension of a row; that of all rows is none."""
        dim %= x.dim()
        if dim == 0:
            raise NotByRow("a dimension")
        return dim - 1

    def dims(self, x: Tensor, dims: Any) -> list[int]:
        """Dimensions of a row."""
        dims = [dims] if isinstance(dims, int) else dims
        if not dims:
            raise NotByRow("all dimensions")
        return [self.dim(x, dim) for dim in dims]


def _scaled(w: _Writer, a: Any, b: Any, alpha: Any, operation: str) -> int:
    second = w.read_operand(b)
    if alpha != 1:
        is_number = isinstance(second, float)
        second = second * alpha if is_number else w.b.point("mul", second, float(alpha))
    return w.b.point(operation, w.read_operand(a), second)


def _div(w: _Writer, a: Any, b: Any, *, rounding_mode: Any = None) -> int:
    if rounding_mode is not None:
        raise NotByRow("rounding")
    return w.point("div", a, b)


def _relu(w: _Writer, x: Any) -> int:
    return w.b.point("where", w.point("le", x, 0.0), 0.0, w.read_operand(x))


def _leaky(w: _Writer, x: Any, slope: float = 0.01) -> int:
    tilted = w.b.point("mul", w.read_operand(x), float(slope))
    return w.b.point("where", w.b.point("lt", 0.0, w.read_operand(x)), w.read_operand(x), tilted)


def _pow(w: _Writer, x: Any, exponent: Any) -> int:
    place = w.read_operand(x)
    if not isinstance(place, int) or isinstance(exponent, Tensor):
        raise NotByRow("a power")
    b = w.b
    if exponent in (1, 2, 3, 4):
        square = b.point("mul", place, place)
        powers = {1: lambda: place, 2: lambda: square, 3: lambda: b.point("mul", square, place)}
        return powers.get(exponent, lambda: b.point("mul", square, square))()
    if exponent in (0.5, -0.5, -1):
        root = place if exponent == -1 else b.point("sqrt", place)
        return root if exponent == 0.5 else b.point("div", 1.0, root)
    raise NotByRow("a power")


def _clamp(
    w: _Writer, x: Any, least: Any = None, most: Any = None, *, min: Any = None, max: Any = None
) -> int:
    least, most = (min if least is None else least), (max if most is None else most)
    place = w.read_operand(x)
    for bound, below in ((least, True), (most, False)):
        if bound is not None:
            edge = w.read_operand(bound)
            if not isinstance(edge, float):
                raise NotByRow("a bound per number")
            pair = (place, edge) if below else (edge, place)
            place = w.b.point("where", w.b.point("lt", *pair), edge, place)
    assert isinstance(place, int)
    return place


def _larger(w: _Writer, a: Any, b: Any, largest: bool = True) -> int:
    first, second = w.read_operand(a), w.read_operand(b)
    n = w.b
    less = n.point("lt", first, second) if largest else n.point("lt", second, first)
    other = n.point("or", less, n.point("not", n.point("eq", second, second)))
    best = n.point("where", other, second, first)
    half = n.point("mul", n.point("add", first, second), 0.5)
    return n.point("where", n.point("eq", first, second), half, best)


def _softplus(w: _Writer, x: Any, beta: Any = 1, threshold: Any = 20) -> int:
    n, place = w.b, w.read_operand(x)
    z = n.point("mul", place, float(beta))
    soft = n.point("div", n.point("softplus", z), float(beta))
    return n.point("where", n.point("lt", float(threshold), z), place, soft)


def _elu(w: _Writer, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> int:
    n, place = w.b, w.read_operand(x)
    below = n.point("where", n.point("lt", place, 0.0), place, 0.0)
    falling = n.point("sub", n.point("exp", n.point("mul", below, float(input_scale))), 1.0)
    low = n.point("mul", falling, float(alpha) * float(scale))
    return n.point("where", n.point("lt", 0.0, place), n.point("mul", place, float(scale)), low)


def _gelu(w: _Writer, x: Any, *, approximate: str = "none") -> int:
    n, place = w.b, w.read_operand(x)
    assert isinstance(place, int)
    if approximate == "none":
        inner = n.point("erf", n.point("mul", place, 1 / math.sqrt(2)))
    else:
        cube = n.point("mul", n.point("mul", place, place), place)
        near = n.point("add", place, n.point("mul", cube, 0.044715))
        inner = n.point("tanh", n.point("mul", near, math.sqrt(2 / math.pi)))
    half = n.point("mul", place, 0.5)
    return n.point("mul", half, n.point("add", inner, 1.0))


def _view(w: _Writer, x: Tensor, sizes: Sequence[int]) -> int:
    sizes = list(sizes)
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.numel() // max(rest, 1)
    if not sizes or sizes[0] != w.rows:
        raise NotByRow("a view")
    return w.b.view(_place(w, x), tuple(sizes[1:]))


def _place(w: _Writer, x: Any) -> int:
    if not isinstance(x, Tensor):
        raise NotByRow("a number")
    return w.known[id(x)]


def _number(w: _Writer, x: Tensor) -> int:
    """The place of a tensor that is no condition."""
    if x.dtype is torch.bool:
        raise NotByRow("a condition")
    return _place(w, x)


def _unsqueeze(w: _Writer, x: Tensor, dim: int) -> int:
    dim = dim % (x.dim() + 1)
    if dim == 0:
        raise NotByRow("a dimension")
    shape = list(x.shape[1:])
    shape.insert(dim - 1, 1)
    return w.b.view(_place(w, x), tuple(shape))


def _squeeze(w: _Writer, x: Tensor, dims: Any = None) -> int:
    if dims is None:
        sizes = [size for size in x.shape[1:] if size != 1]
    else:
        gone = w.dims(x, dims)
        sizes = [s for dim, s in enumerate(x.shape[1:]) if dim not in gone or s != 1]
    return w.b.view(_place(w, x), tuple(sizes))


def _expand(w: _Writer, x: Tensor, sizes: Sequence[int], *, implicit: bool = False) -> int:
    added = len(sizes) - x.dim()
    if added or sizes[0] not in (-1, w.rows):
        raise NotByRow("rows are repeated")
    shape = tuple(old if new == -1 else new for old, new in zip(x.shape, sizes, strict=True))
    return w.b.expand(_place(w, x), shape[1:])


def _slice(
    w: _Writer, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> int:
    size = x.size(dim)
    first, last, _ = slice(start, end).indices(size)
    if dim % x.dim() == 0 and (first, last, step) == (0, size, 1):
        return _place(w, x)
    if step != 1:
        raise NotByRow("steps")
    return w.b.slice(_place(w, x), w.dim(x, dim), first, last)


def _select(w: _Writer, x: Tensor, dim: int, index: int) -> int:
    axis = w.dim(x, dim)
    index %= x.size(axis + 1)
    entry = w.b.slice(_place(w, x), axis, index, index + 1)
    shape = [size for place, size in enumerate(x.shape[1:]) if place != axis]
    return w.b.view(entry, tuple(shape))


def _split(w: _Writer, x: Tensor, sizes: Any, dim: int = 0) -> tuple[int, ...]:
    axis, whole = w.dim(x, dim), x.size(dim)
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - first) for first in range(0, whole, sizes)]
    outs, first = [], 0
    for size in sizes:
        outs.append(w.b.slice(_place(w, x), axis, first, first + size))
        first += size
    return tuple(outs)


def _unbind(w: _Writer, x: Tensor, dim: int = 0) -> tuple[int, ...]:
    return tuple(_select(w, x, dim, index) for index in range(x.size(dim)))


def _permute(w: _Writer, x: Tensor, dims: Sequence[int]) -> int:
    dims = [dim % x.dim() for dim in dims]
    if dims[0] != 0:
        raise NotByRow("a dimension")
    return w.b.permute(_place(w, x), [dim - 1 for dim in dims[1:]])


def _transpose(w: _Writer, x: Tensor, first: int, second: int) -> int:
    dims = list(range(x.dim()))
    first, second = first % x.dim(), second % x.dim()
    dims[first], dims[second] = dims[second], dims[first]
    return _permute(w, x, dims)


def _cat(w: _Writer, xs: Sequence[Tensor], dim: int = 0) -> int:
    if any(x.size(0) != w.rows for x in xs):
        raise NotByRow("rows")
    return w.b.cat([_number(w, x) for x in xs], w.dim(xs[0], dim))


def _stack(w: _Writer, xs: Sequence[Tensor], dim: int = 0) -> int:
    dim %= xs[0].dim() + 1
    for x in xs:
        _number(w, x)
    return w.b.cat([_unsqueeze(w, x, dim) for x in xs], dim - 1)


def _sum(w: _Writer, x: Tensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> int:
    axes = w.dims(x, dims)
    total = w.b.total(_number(w, x), axes)
    if keepdim:
        shape = tuple(1 if dim in axes else size for dim, size in enumerate(x.shape[1:]))
        total = w.b.view(total, shape)
    return total


def _mean(w: _Writer, x: Tensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> int:
    count = math.prod(x.size(dim + 1) for dim in w.dims(x, dims))
    return w.b.point("mul", _sum(w, x, dims, keepdim), 1 / count)


def _bmm(w: _Writer, a: Tensor, b: Tensor) -> int:
    left = w.b.view(_place(w, a), (*a.shape[1:], 1))
    right = w.b.view(_place(w, b), (1, *b.shape[1:]))
    return w.b.total(w.b.point("mul", left, right), [1])


def _same(w: _Writer, x: Tensor, **kwargs: Any) -> int:
    to = kwargs.get("dtype") or x.dtype
    if x.dtype is torch.bool and to.is_floating_point:
        return w.b.point("where", _place(w, x), 1.0, 0.0)
    if to is not x.dtype and not (to.is_floating_point and x.is_floating_point()):
        raise NotByRow("another dtype")
    return _place(w, x)


def _compare(operation: str, swapped: bool = False, negated: bool = False) -> Callable[..., int]:
    def compare(w: _Writer, a: Any, b: Any) -> int:
        place = w.point(operation, *((b, a) if swapped else (a, b)))
        return w.b.point("not", place) if negated else place

    return compare


def _plain(name: str) -> Callable[..., int]:
    return lambda w, *operands: w.point(name, *operands)


def _logical(name: str) -> Callable[..., int]:
    return lambda w, *operands: w.logical(name, *operands)


# By the name of ATen.
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{
        name: _plain(name)
        for name in (
            *("mul", "neg", "abs", "exp", "log", "log1p", "sqrt", "sin", "cos", "erf", "tanh"),
            "sigmoid",
        )
    },
    "add": lambda w, a, b, *, alpha=1: _scaled(w, a, b, alpha, "add"),
    "sub": lambda w, a, b, *, alpha=1: _scaled(w, a, b, alpha, "sub"),
    "rsub": lambda w, a, b, alpha=1: _scaled(w, b, a, alpha, "sub"),
    "div": _div,
    "relu": _relu,
    "leaky_relu": _leaky,
    "silu": lambda w, x: w.b.point("mul", w.read_operand(x), w.point("sigmoid", x)),
    "square": lambda w, x: _pow(w, x, 2),
    "rsqrt": lambda w, x: _pow(w, x, -0.5),
    "reciprocal": lambda w, x: _pow(w, x, -1),
    "pow": _pow,
    "clamp": _clamp,
    "clamp_min": lambda w, x, least: _clamp(w, x, least),
    "clamp_max": lambda w, x, most: _clamp(w, x, None, most),
    "hardtanh": lambda w, x, least=-1, most=1: _clamp(w, x, least, most),
    "maximum": _larger,
    "minimum": lambda w, a, b: _larger(w, a, b, largest=False),
    "softplus": _softplus,
    "elu": _elu,
    "gelu": _gelu,
    "lt": _compare("lt"),
    "gt": _compare("lt", swapped=True),
    "le": _compare("le"),
    "ge": _compare("le", swapped=True),
    "eq": _compare("eq"),
    "ne": _compare("eq", negated=True),
    "where": lambda w, x, a, b: w.b.point(
        "where", _place(w, x), w.read_operand(a), w.read_operand(b)
    ),
    "logical_not": _logical("not"),
    "bitwise_not": _logical("not"),
    "logical_and": _logical("and"),
    "bitwise_and": _logical("and"),
    "logical_or": _logical("or"),
    "bitwise_or": _logical("or"),
    "view": _view,
    "reshape": _view,
    "_unsafe_view": _view,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    "split": _split,
    "split_with_sizes": _split,
    "unbind": _unbind,
    "permute": _permute,
    "transpose": _transpose,
    "t": lambda w, x: _transpose(w, x, 0, 1),
    "cat": _cat,
    "stack": _stack,
    "sum": _sum,
    "mean": _mean,
    "bmm": _bmm,
    "clone": lambda w, x, *, memory_format=None: _place(w, x),
    "alias": lambda w, x: _place(w, x),
    "_to_copy": lambda w, x, **kwargs: _same(w, x, **kwargs),
}
# Those that compute with conditions as ones and zeros.
_OF_NUMBERS = [OPERATIONS[name] for name in ("add", "mul", "maximum", "minimum", "where")]
