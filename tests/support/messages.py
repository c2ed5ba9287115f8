"""Messages of published layers, as programs of the operator ``neighbours``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours.derivative import accompanied, derivative
from staticgraph.kernels.neighbours.program import Builder, Program, Result
from support.drawn_programs import drawn_case


class Call(NamedTuple):
    """A program with the arguments of a call."""

    program: Program
    operands: list[Tensor]
    codes: list[Tensor]
    edges: Edges


def drawn_call(seed: int, dtype: torch.dtype, program: Program | None = None) -> Call:
    """A call of a program, of the one that is drawn from the seed by default."""
    program, operands, codes, edges = drawn_case(seed, dtype, program)
    return Call(program, [one.detach() for one in operands], codes, edges)


def rectified(builder: Builder, value: int) -> int:
    """ReLU."""
    return builder.point("where", builder.point("le", value, 0.0), 0.0, value)


def gine(width: int) -> Program:
    """GINE: ``relu(x_j + e)``, summed."""
    builder = Builder()
    source, edge = (builder.operand(place, (width,)) for place in ("source", "edge"))
    message = rectified(builder, builder.point("add", source, edge))
    return builder.program([Result(message, "sum")])


def gated(heads: int, width: int) -> Program:
    """A gate of each head, from scores of both ends and the edge, times the rows of sources."""
    builder = Builder()
    rows = builder.operand("source", (heads, width))
    ends = [builder.operand(place, (heads, 1)) for place in ("target", "source", "edge")]
    score = builder.point("add", builder.point("add", *ends[:2]), ends[2])
    message = builder.point("mul", rows, builder.point("sigmoid", score))
    return builder.program([Result(message, "sum")])


def painn(width: int) -> Program:
    """PaiNN: a filter of three parts, for scalars, vectors and directions."""
    builder = Builder()
    weight, source = (builder.operand(place, (3 * width,)) for place in ("edge", "source"))
    vectors = builder.operand("source", (3, width))
    direction = builder.operand("edge", (3, 1))
    product = builder.point("mul", weight, source)
    kept, scalar, along = (
        builder.slice(product, 0, part * width, (part + 1) * width) for part in range(3)
    )
    vector = builder.point(
        "add", builder.point("mul", vectors, kept), builder.point("mul", direction, along)
    )
    return builder.program([Result(scalar, "sum"), Result(vector, "sum")])


def pna(towers: int, width: int) -> Program:
    """PNA: mean, minimum, maximum and standard deviation of a sum of both ends and the edge."""
    builder = Builder()
    places = ("source", "target", "edge")
    source, target, edge = (builder.operand(place, (towers, width)) for place in places)
    message = builder.point("add", builder.point("add", source, target), edge)
    message = rectified(builder, message)
    return builder.program([Result(message, way) for way in ("mean+min+max+std", "var")])


def nnconv(columns: int, width: int) -> Program:
    """NNConv: a row times the matrix of the edge."""
    builder = Builder()
    row = builder.view(builder.operand("source", (columns,)), (columns, 1))
    matrix = builder.view(builder.operand("edge", (columns * width,)), (columns, width))
    return builder.program([Result(builder.total(builder.point("mul", row, matrix), [0]), "mean")])


MESSAGES = {
    "GINE of 64": gine(64),
    "GINE of 300": gine(300),
    "gated heads": gated(4, 64),
    "PaiNN": painn(64),
    "PNA": pna(4, 75),
    "NNConv": nnconv(16, 16),
}


def with_derivative(program: Program) -> tuple[Program, Program]:
    """A program as training runs it, and its derivative by all operands from all results."""
    whole = accompanied(program)
    return whole, derivative(whole, graded(whole), tuple(range(len(program.operands)))).program


def graded(program: Program) -> tuple[int, ...]:
    """The results that have a gradient."""
    return tuple(
        number
        for number, result in enumerate(program.results)
        if not result.reduction.endswith("_ties")
    )
