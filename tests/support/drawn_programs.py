"""Programs over edges, drawn: any expression of rows of any operands, under any reduction; and
reductions at their limits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges, order_edges
from staticgraph.kernels.neighbours import Builder, Program, Result
from staticgraph.kernels.neighbours.program import INTO, SIMPLE, broadcast

TABLE = 5
_UNARY = ("neg", "abs", "tanh", "sigmoid", "sin", "cos", "erf", "softplus")


def drawn_program(seed: int, tables: bool = True) -> tuple[Program, int]:
    """Returns a program, and how many codes it reads tables by."""
    draw, b = random.Random(seed), Builder()
    heads, columns = draw.choice([1, 1, 2, 3, 4]), draw.choice([1, 3, 4, 8, 16, 20, 31, 33, 64])
    shapes = [(heads, columns), (1, columns), (heads, 1), (columns,), (1, 1), ()]
    values: list[int] = []
    codes = 0
    for _ in range(draw.randint(1, 4)):
        place = draw.choice(["source", "source", "target", "edge", "edge", "table", "all"])
        place = "edge" if place == "table" and not tables else place
        code = codes if place == "table" else -1
        codes += place == "table"
        values.append(b.operand(place, draw.choice(shapes), code))
    if draw.random() < 0.3:
        values.append(b.view(b.operand("source", (heads * columns,)), (heads, columns)))
    if draw.random() < 0.3:
        part = draw.randint(0, 2) * columns
        values.append(b.slice(b.operand("edge", (3 * columns,)), 0, part, part + columns))
    for _ in range(draw.randint(0, 7)):
        value = _drawn_value(draw, b, values, (heads, columns))
        if value is not None:
            values.append(value)
    names = ("rows", *SIMPLE[:6], "source_sum", "mean+max", "min+var", "softmax", "logsumexp")
    results = []
    for reduction in draw.sample(names, draw.randint(1, 3)):
        value = draw.choice(values[-3:])
        if b.shape(value) or "+" not in reduction:
            results.append(_drawn_result(draw, b, values, value, reduction))
    return b.program(results or [Result(values[-1], "sum")]), codes


def _drawn_result(
    draw: random.Random, b: Builder, values: list[int], value: int, reduction: str
) -> Result:
    """A reduction, of some with a term of the node itself."""
    if reduction not in ("sum", "source_sum", "softmax", "logsumexp"):
        return Result(value, reduction)
    shape, of_nodes = b.shape(value), [place for place in values if _is_of_nodes(b, place)]
    start = weight = start_weight = -1
    if of_nodes and draw.random() < 0.6:
        start = b.expand(b.fit(draw.choice(of_nodes), ()), shape)
        if draw.random() < 0.6:
            start = b.point("mul", start, b.expand(b.operand("target", shape), shape))
    if reduction == "softmax":
        weight = b.leading(value, shape[: draw.randint(0, len(shape))])
        if draw.random() < 0.3:
            weight = b.point("where", b.loop(), b.point("sub", weight, 9.0), weight)
        if start >= 0:
            start_weight = b.leading(start, b.shape(weight))
    return Result(value, reduction, start, weight, start_weight)


def _is_of_nodes(b: Builder, place: int) -> bool:
    """Whether a value has rows of nodes, or one row for all."""
    operation, arguments, _, options = b.values[place]
    if operation == "operand":
        return b.operands[options[0]].place in ("source", "target", "all")
    return operation not in ("share", "loop") and all(
        _is_of_nodes(b, argument) for argument in arguments
    )


def _drawn_value(
    draw: random.Random, b: Builder, values: list[int], whole: tuple[int, int]
) -> int | None:
    kind, value = draw.random(), draw.choice(values)
    shape = b.shape(value)
    if kind < 0.45:
        return _function(draw, b, value)
    if kind < 0.8:
        other, operation = draw.choice(values), draw.choice(["add", "sub", "mul", "div"])
        if operation == "div":
            other = b.point("add", b.point("mul", other, other), 1.0)
        return b.point(operation, value, other)
    if kind < 0.9 and shape:
        dim = draw.randrange(len(shape))
        return b.view(b.total(value, [dim]), (*shape[:dim], 1, *shape[dim + 1 :]))
    if kind < 0.95 and len(shape) == 2:
        if draw.random() < 0.5:
            return b.permute(b.view(value, shape[::-1]), [1, 0])
        first = shape[1] // 2
        return b.slice(b.cat([value, value], 1), 1, first, first + shape[1])
    return b.expand(value, broadcast(shape, whole))


def _function(draw: random.Random, b: Builder, value: int) -> int:
    name = draw.choice([*_UNARY, "relu", "square", "exp", "log", "log1p", "sqrt"])
    square = b.point("mul", value, value)
    if name == "relu":
        return b.point("where", b.point("le", value, 0.0), 0.0, value)
    if name == "square":
        return square
    if name == "exp":
        return b.point("exp", b.point("tanh", value))
    if name in ("log", "log1p", "sqrt"):
        return b.point(name, b.point("add", square, 0.5))
    return b.point(name, value)


def drawn_case(
    seed: int, dtype: torch.dtype, program: Program | None = None
) -> tuple[Program, list[Tensor], list[Tensor], Edges]:
    """Returns a program, the one that is drawn from the seed by default, with operands, codes and
    edges: few nodes, from no edges to many; for every third seed in any order, and from more or
    fewer sources if nodes' own terms are of targets alone."""
    program = program or drawn_program(seed)[0]
    count = 1 + max(operand.code for operand in program.operands)
    draw, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    nodes, number = int(draw.integers(1, 12)), int(draw.integers(0, 40))
    edges, sources = drawn_edges(draw, nodes, number), nodes
    if seed % 3 == 1:
        if all(map(partial(_is_of_one_end, program), program.results)):
            sources = nodes + 4 if seed % 2 else nodes // 2 + 1
        src, dst = (torch.from_numpy(draw.integers(0, n, number)) for n in (sources, nodes))
        edges = Edges(src, dst, *order_edges(src, dst, sources, nodes))
    rows = {
        "source": (sources,),
        "target": (nodes,),
        "edge": (number,),
        "table": (TABLE,),
        "all": (),
    }
    operands = [
        torch.randn(
            (*rows[operand.place], *operand.shape), generator=generator, dtype=torch.float64
        )
        .to(dtype)
        .requires_grad_()
        for operand in program.operands
    ]
    codes = [torch.randint(0, TABLE, (number,), generator=generator) for _ in range(count)]
    return program, operands, codes, edges


def _is_of_one_end(program: Program, result: Result) -> bool:
    places = [place for place in (result.start, result.start_weight) if place >= 0]
    if places and result.reduction == "source_sum":
        return False
    for place in places:  # grows
        operation, arguments, _, options = program.values[place]
        of_source = operation == "operand" and program.operands[options[0]].place == "source"
        if of_source or operation == "loop":
            return False
        places += arguments
    return True


def drawn_edges(draw: np.random.Generator, nodes: int, number: int) -> Edges:
    """Returns random edges, sorted by destination."""
    dst, src = np.sort(draw.integers(0, nodes, number)), draw.integers(0, nodes, number)
    transpose = np.argsort(src, kind="stable")
    everything = np.arange(nodes + 1)
    row_ptr = np.searchsorted(dst, everything)
    col_ptr = np.searchsorted(src[transpose], everything)
    ends = (torch.from_numpy(array) for array in (src, dst))
    pointers = (torch.from_numpy(array).int() for array in (row_ptr, col_ptr, transpose))
    return Edges(*ends, *pointers)


# Runs a program: it gets the program, operands, codes and edges.
Run = Callable[..., Sequence[Tensor]]


def numbers_of(values: list[list[float]]) -> tuple[list[Tensor], Edges]:
    """Numbers of edges, by the node that they enter; all leave the first one."""
    dst = torch.tensor([node for node, row in enumerate(values) for _ in row])
    counts = torch.tensor([0] + [len(row) for row in values])
    edges = Edges(
        torch.zeros_like(dst),
        dst,
        counts.cumsum(0).int(),
        torch.tensor([0] + [len(dst)] * len(values)).int(),
        torch.arange(len(dst)).int(),
    )
    return [torch.tensor([number for row in values for number in row])], edges


def of_nothing_of_one_of_ties_and_of_nan(run: Run) -> None:
    """Each reduction of nodes of few edges."""
    nan = math.nan
    operands, edges = numbers_of([[], [3.0], [2, -1, -1, 2], [1, nan, 2], [nan], [0, 1, 0, 1]])
    builder = Builder()
    value = builder.operand("edge", ())
    program = builder.program([Result(value, name, weight=value) for name in INTO])
    actual = dict(zip(INTO, run(program, operands, [], edges), strict=True))
    expected = {
        "sum": [0, 3, 2, nan, nan, 2],
        "mean": [0, 3, 0.5, nan, nan, 0.5],
        "min": [0, 3, -1, nan, nan, 0],
        "max": [0, 3, 2, nan, nan, 1],
        "var": [0, 0, 2.25, nan, nan, 0.25],
        "std": [0, 0, 1.5, nan, nan, 0.5],
        "softmax": [0, 3, (2 - math.exp(-3)) / (1 + math.exp(-3)), nan, nan, 1 / (1 + 1 / math.e)],
        "logsumexp": [
            0,
            3,
            2 + math.log(2 + 2 * math.exp(-3)),
            nan,
            nan,
            1 + math.log(2 + 2 / math.e),
        ],
    }
    for name, numbers in expected.items():
        assert torch.allclose(actual[name], torch.tensor(numbers), equal_nan=True), name
    real = torch.tensor([0, 1, 2, 5])
    assert actual["min_ties"][real].tolist() == [1, 1, 2, 3]
    assert actual["max_ties"][real].tolist() == [1, 1, 2, 2]


def of_weights_that_are_far_apart_or_infinite(run: Run) -> None:
    """Weights of -inf are those of edges that are left out."""
    inf = math.inf
    rows = [[], [-inf], [-inf, 2, -inf], [-1e30, 1e30, -1e30, 1e30], [-3e38, 3e38], [0, -90, 90]]
    weights, edges = numbers_of([[float(number) for number in row] for row in rows])
    builder = Builder()
    value, weight = (builder.operand("edge", ()) for _ in range(2))
    results = Result(value, "softmax", weight=weight), Result(weight, "logsumexp")
    values = torch.arange(1.0, 1 + len(weights[0]))
    softmax, whole = run(builder.program(results), [values, *weights], [], edges)
    assert softmax.tolist() == [0, 0, 3, 7, 10, 13]
    assert torch.equal(whole, torch.tensor([0, 0, 2, 1e30, 3e38, 90]))


def of_what_is_far_from_zero(run: Run, dtype: torch.dtype = torch.float32) -> None:
    """A mean of squares would lose the digits of the deviation; half precisions keep theirs."""
    torch.manual_seed(0)
    src, dst = torch.arange(40) % 4, torch.arange(40) // 10
    row_ptr = torch.arange(0, 41, 10).int()
    edges = Edges(src, dst, row_ptr, row_ptr, torch.argsort(src, stable=True).int())
    rows = (1000 + torch.randn(40, 5)).to(dtype)
    builder = Builder()
    program = builder.program([Result(builder.operand("edge", (5,)), "mean+std")])
    out = run(program, [rows], (), edges)[0].double()
    wide = rows.double().view(4, 10, 5)
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    rounding = torch.finfo(dtype).eps
    assert (out[:, :5] - wide.mean(1)).abs().max() <= 1000 * (10 * eps + rounding)
    spread = wide.std(1, correction=0)
    assert torch.allclose(out[:, 5:], spread, rtol=1e4 * eps + rounding, atol=0)


CHECKS = [
    of_nothing_of_one_of_ties_and_of_nan,
    of_weights_that_are_far_apart_or_infinite,
    of_what_is_far_from_zero,
]
