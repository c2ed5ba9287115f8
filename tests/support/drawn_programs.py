"""Random programs of the operator ``neighbours``, with operands over a random graph."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours.program import REDUCTIONS, Builder, Program, Result, broadcast

ROWS_OF_A_TABLE = 5
UNARY = ("neg", "abs", "tanh", "sigmoid", "sin", "cos", "erf", "softplus")
COMPOSED = ("exp", "relu", "square", "log", "log1p", "sqrt")


class Call(NamedTuple):
    """A program with the arguments of a call."""

    program: Program
    operands: list[Tensor]
    codes: list[Tensor]
    edges: Edges


def drawn_edges(rng: np.random.Generator, nodes: int, edges: int) -> Edges:
    """Random edges, sorted by destination."""
    dst, src = np.sort(rng.integers(0, nodes, edges)), rng.integers(0, nodes, edges)
    transpose = np.argsort(src, kind="stable")
    numbers = np.arange(nodes + 1)
    pointers = np.searchsorted(dst, numbers), np.searchsorted(src[transpose], numbers), transpose
    return Edges(
        torch.tensor(src), torch.tensor(dst), *(torch.tensor(one).int() for one in pointers)
    )


def drawn_program(seed: int) -> Program:
    """A program of up to five operands, seven operations and three reductions."""
    rng, builder = random.Random(seed), Builder()
    heads, width = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 3, 8, 16, 20, 31, 33, 64])
    shapes = [(heads, width), (1, width), (heads, 1), (width,), (1, 1), ()]
    tables, values = 0, []
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(["source", "source", "target", "edge", "edge", "table", "all"])
        code = tables if place == "table" else -1
        tables += place == "table"
        values.append(builder.operand(place, rng.choice(shapes), code))
    if rng.random() < 0.3:
        row = builder.operand("source", (heads * width,))
        values.append(builder.view(row, (heads, width)))
    if rng.random() < 0.3:
        row, part = builder.operand("edge", (3 * width,)), rng.randint(0, 2)
        values.append(builder.slice(row, 0, part * width, (part + 1) * width))
    for _ in range(rng.randint(0, 7)):
        values.append(_drawn_value(rng, builder, values, (heads, width)))
    reductions = rng.sample((*REDUCTIONS[:7], "source_sum"), rng.randint(1, 3))
    return builder.program([Result(rng.choice(values[-3:]), one) for one in reductions])


def _drawn_value(
    rng: random.Random, builder: Builder, values: list[int], whole: tuple[int, int]
) -> int:
    """One operation on values drawn from ``values``."""
    kind, value = rng.random(), rng.choice(values)
    shape = builder.shape(value)
    if kind < 0.45:
        return _function(builder, rng.choice(UNARY + COMPOSED), value)
    if kind < 0.8:
        other, operation = rng.choice(values), rng.choice(["add", "sub", "mul", "div"])
        if operation == "div":
            other = builder.point("add", builder.point("mul", other, other), 1.0)
        return builder.point(operation, value, other)
    if kind < 0.9 and shape:
        dim = rng.randrange(len(shape))
        return builder.view(builder.total(value, [dim]), (*shape[:dim], 1, *shape[dim + 1 :]))
    if kind < 0.95 and len(shape) == 2:
        if rng.random() < 0.5:
            return builder.permute(builder.view(value, (shape[1], shape[0])), [1, 0])
        twice = builder.cat([value, value], 1)
        return builder.slice(twice, 1, shape[1] // 2, shape[1] // 2 + shape[1])
    return builder.expand(value, broadcast(shape, whole))


def _function(builder: Builder, name: str, value: int) -> int:
    """A function of one number, of arguments that it has a finite value and slope at."""
    if name == "exp":
        return builder.point("exp", builder.point("tanh", value))
    if name == "relu":
        return builder.point("where", builder.point("le", value, 0.0), 0.0, value)
    if name in ("square", "log", "sqrt"):
        square = builder.point("mul", value, value)
        return (
            square if name == "square" else builder.point(name, builder.point("add", square, 0.5))
        )
    if name == "log1p":
        falling = builder.point("exp", builder.point("neg", builder.point("abs", value)))
        return builder.point("log1p", falling)
    return builder.point(name, value)


def drawn_call(seed: int, dtype: torch.dtype, program: Program | None = None) -> Call:
    """A call of a program, of the one drawn from the seed by default."""
    program = drawn_program(seed) if program is None else program
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    nodes, count = int(rng.integers(1, 12)), int(rng.integers(0, 40))
    edges = drawn_edges(rng, nodes, count)
    rows = {
        "source": (nodes,),
        "target": (nodes,),
        "edge": (count,),
        "table": (ROWS_OF_A_TABLE,),
        "all": (),
    }
    operands = [
        torch.randn((*rows[place], *shape), generator=generator).to(dtype)
        for place, shape, _ in program.operands
    ]
    tables = 1 + max((operand.code for operand in program.operands), default=-1)
    codes = [
        torch.randint(0, ROWS_OF_A_TABLE, (count,), generator=generator) for _ in range(tables)
    ]
    return Call(program, operands, codes, edges)
