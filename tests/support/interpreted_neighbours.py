"""The Triton kernels that are written for programs, run by Triton's interpreter on the CPU.

Started by test_kernels_triton.py in a separate process, like interpreted_cases.py. The bound of
an error is that of eager torch in single precision, both against double precision, and the rounding
of a few operations.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

assert os.environ.get("TRITON_INTERPRET") == "1"

from staticgraph.kernels.edges import Edges  # noqa: E402
from staticgraph.kernels.neighbours import (  # noqa: E402
    Builder,
    Program,
    Result,
    gpu,
    neighbours_reference,
)
from staticgraph.kernels.neighbours.derivative import accompanied, derivative  # noqa: E402
from staticgraph.kernels.neighbours.operations import POINTWISE  # noqa: E402
from staticgraph.kernels.neighbours.program import known  # noqa: E402
from staticgraph.kernels.register import CUDA, LIBRARY  # noqa: E402
from support.drawn_programs import CHECKS, drawn_edges, drawn_program  # noqa: E402
from support.messages import MESSAGES, Call, drawn_call, graded  # noqa: E402

PROGRAMS = int(os.environ.get("PROGRAMS", "25"))
DTYPES = (torch.float32, torch.bfloat16)
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(scope="module", autouse=True)
def triton_in_place_of_loops():
    LIBRARY.impl("neighbours", CUDA["neighbours"], "CPU", allow_override=True)


def on_triton(
    program: Program, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Edges
) -> list[Tensor]:
    """The results of a program, in the accumulation dtype."""
    assert gpu.supports(program) is None
    return torch.ops.staticgraph.neighbours(
        known(program), list(operands), list(codes), edges.arrays
    )


def in_torch(
    dtype: torch.dtype, program: Program, operands: Sequence[Tensor], *given: Any
) -> list[Tensor]:
    return neighbours_reference(program, [operand.to(dtype) for operand in operands], *given)


in_single, in_double = (partial(in_torch, dtype) for dtype in (torch.float32, torch.float64))


def assert_alike(call: Call) -> None:
    """Compares a program's results, and those of its derivative."""
    whole = accompanied(call.program)
    ways, places = graded(whole), tuple(range(len(call.operands)))
    slope = derivative(whole, ways, places)
    forward, backward = [], []
    for run in (on_triton, in_single, in_double):
        results = run(whole, call.operands, call.codes, call.edges)
        forward.append(results)
        generator = torch.Generator().manual_seed(0)
        grads = [torch.randn(results[place].shape, generator=generator) for place in ways]
        read = [results[place] for place in slope.results]
        if slope.program.results:
            operands = [*call.operands, *read, *grads]
            backward.append(run(slope.program, operands, call.codes, call.edges))
    for program, runs in ((whole, forward), (slope.program, backward)):
        for number, (actual, single, double) in enumerate(zip(*runs, strict=True)):
            assert actual.dtype == torch.float32
            assert actual.shape == double.shape
            if not actual.numel():
                continue
            bound = 4 * (single - double).abs().max() + 32 * EPS * (1 + double.abs().max())
            error = (actual - double).abs().max()
            assert error <= bound, f"result {number}: {error} beyond {bound}\n{program}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_drawn_programs(seed, dtype):
    call = drawn_call(seed, dtype, drawn_program(seed, tables=False)[0])
    reason = gpu.supports(call.program)
    if reason is None:
        assert_alike(call)
    else:
        assert "total" in reason or "mixes its parts" in reason


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name):
    assert_alike(drawn_call(4, torch.float32, MESSAGES[name]))


def shuffled() -> Program:
    """Parts of unequal widths side by side, summed, and in the order of another shape."""
    builder = Builder()
    row, wide = builder.operand("source", (4, 3)), builder.operand("edge", (4, 5))
    target = builder.operand("target", (4, 1))
    both = builder.cat([row, builder.point("mul", wide, target), row], 1)
    crossed = builder.permute(builder.view(row, (3, 4)), [1, 0])
    flat = builder.view(row, (12,))
    halves = builder.view(builder.cat([flat, flat], 0), (8, 3))
    whole = builder.point("mul", builder.expand(target, (4, 11)), both)
    return builder.program(
        [
            Result(whole, "sum"),
            Result(builder.total(builder.point("sigmoid", whole), [1]), "rows"),
            Result(builder.point("mul", crossed, row), "max"),
            Result(builder.point("tanh", halves), "source_sum"),
            Result(builder.total(builder.expand(target, (4, 7)), [0, 1]), "mean"),
        ]
    )


def in_parts(builder: Builder, first: int, second: int, shape: tuple[int, int]) -> Any:
    """Numbers of the source and then of the edge, read as rows."""
    parts = [builder.operand("source", (first,)), builder.operand("edge", (second,))]
    return builder.view(builder.cat(parts, 0), shape)


def cut_in_rows(row: int) -> Program:
    """Parts that meet within a row of the shape in which they are read."""
    builder = Builder()
    rows = in_parts(builder, 4 * row + 2, 18 - 4 * row, (5, 4))
    gated = builder.point("mul", rows, builder.operand("target", (5, 1)))
    return builder.program([Result(rows, "rows"), Result(gated, "sum")])


def cut_when_merged() -> Program:
    """Parts that meet within a row, where rows are read as one."""
    builder = Builder()
    return builder.program([Result(in_parts(builder, 5, 7, (2, 6)), "sum")])


def cut_in_columns() -> Program:
    """Parts of which every third number is read, a column of rows of three."""
    builder = Builder()
    rows = in_parts(builder, 5, 7, (4, 3))
    columns = [builder.slice(rows, 1, column, column + 1) for column in range(3)]
    return builder.program([Result(column, "sum") for column in columns])


def sliced_rows_of_one(heads: int) -> Program:
    """Rows that are given without gaps, of which columns and heads are read."""
    builder = Builder()
    flat, gate = builder.operand("edge", (heads * 6,)), builder.operand("source", (heads, 1))
    rows = builder.view(flat, (heads, 6))
    values = [
        builder.point("mul", builder.slice(rows, 1, 1, 4), gate),
        builder.slice(rows, 0, 1, heads),
        builder.view(builder.point("mul", rows, gate), (heads * 6,)),
    ]
    whole = builder.total(values[-1], [0])
    return builder.program([*(Result(value, "sum") for value in values), Result(whole, "rows")])


def next_to_zeros() -> Program:
    """Zeros beside a part, under each operation that leaves zeros or the other number."""
    builder = Builder()
    row, whole = builder.operand("edge", (3,)), builder.operand("source", (5,))
    zeros, ones = (builder.number(number, (2,)) for number in (0.0, 1.0))
    beside, above = builder.cat([zeros, row], 0), builder.cat([row, ones], 0)
    values = [
        builder.point("sub", beside, whole),
        builder.point("sub", whole, beside),
        builder.point("add", beside, whole),
        builder.point("mul", whole, beside),
        builder.point("mul", above, whole),
        builder.point("neg", above),
    ]
    return builder.program([Result(value, "sum") for value in values])


def read_past_a_row() -> Program:
    """The first four numbers of two rows of three: one more than a row has."""
    builder = Builder()
    rows, gate = builder.operand("source", (2, 3)), builder.operand("edge", (2, 1))
    flat = builder.view(builder.point("mul", rows, gate), (6,))
    return builder.program([Result(builder.slice(flat, 0, 0, 4), "sum")])


def of_three_dimensions() -> Program:
    """Rows of three dimensions, of which the last two are read as one."""
    builder = Builder()
    rows, gate = builder.operand("source", (2, 3, 5)), builder.operand("edge", (2, 1, 1))
    bias = builder.operand("all", (3, 1))
    plain = builder.point("mul", rows, gate)
    message = builder.point("add", plain, bias)
    turned = builder.permute(message, [2, 0, 1])
    return builder.program(
        [Result(plain, "std"), Result(builder.total(message, [1]), "sum"), Result(turned, "rows")]
    )


SHAPES = [
    shuffled(),
    *map(cut_in_rows, (0, 2, 4)),
    cut_when_merged(),
    cut_in_columns(),
    *map(sliced_rows_of_one, (3, 16)),
    next_to_zeros(),
    read_past_a_row(),
    of_three_dimensions(),
]


@pytest.mark.parametrize("program", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(program, dtype):
    assert_alike(drawn_call(3, dtype, program))


def test_dimensions_are_merged_where_none_is_needed():
    builder = Builder()
    rows, gate = builder.operand("source", (2, 3, 5)), builder.operand("edge", (2, 1, 1))
    program = builder.program([Result(builder.point("mul", rows, gate), "sum")])
    ((_, text),) = gpu._texts(program)
    assert text.tile == 2 * 16
    assert_alike(drawn_call(3, torch.float32, program))
    ((_, text),) = gpu._texts(cut_when_merged())
    assert text.source.count("tl.store") == 2


def test_a_row_without_gaps_is_read_by_two_axes():
    ((_, text),) = gpu._texts(sliced_rows_of_one(16))
    assert "//" not in text.source
    assert "%" not in text.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POINTWISE)
def test_an_operation_keeps_its_relative_accuracy(name, dtype):
    """Next to zero, where intermediate values overflow, and at infinity and NaN."""
    size = 10.0 ** torch.arange(-30, 31, dtype=dtype)
    plain = torch.linspace(-9, 9, 61, dtype=dtype)
    special = torch.tensor(
        [0.0, -0.0, 0.5, -0.5, 88, -88, math.inf, -math.inf, math.nan], dtype=dtype
    )
    x = torch.cat([size, -size, plain, special])
    if name in ("sin", "cos"):
        x = x[x.abs() < 1e4]
    y = torch.where(torch.arange(len(x)) % 3 == 0, x, x.roll(7))
    builder = Builder()
    first, second = (builder.operand("edge", ()) for _ in range(2))
    if name == "where":
        value = builder.point("where", builder.point("lt", first, second), first, second)
    elif name in ("not", "and", "or"):
        tests = builder.point("lt", first, second), builder.point("lt", 0.0, second)
        test = builder.point(name, *tests[: 1 + (name != "not")])
        value = builder.point("where", test, 1.0, 2.0)
    elif name in ("lt", "le", "eq"):
        value = builder.point("where", builder.point(name, first, second), 1.0, 2.0)
    elif name in ("add", "sub", "mul", "div"):
        value = builder.point(name, first, second)
    else:
        value = builder.point(name, first)
    program = builder.program([Result(value, "rows")])
    count = len(x)
    edges = drawn_edges(np.random.default_rng(0), 5, count)
    (actual,) = on_triton(program, [x, y], [], edges)
    (exact,) = in_double(program, [x, y], [], edges)
    rounded = exact.to(dtype)
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    apart = (actual.double() - rounded.double()).abs() > 8 * eps * rounded.double().abs() + tiny
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    wrong = apart & ~same | (actual.isnan() != rounded.isnan())
    assert not wrong.any(), [(x[i], y[i], actual[i], rounded[i]) for i in wrong.nonzero()[:5]]


@pytest.mark.parametrize("check", CHECKS)
def test_reductions(check):
    check(on_triton)
