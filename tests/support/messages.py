"""Messages of published layers, as programs of the operator ``neighbours``."""

from __future__ import annotations

import math
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
    return Call(program, [operand.detach() for operand in operands], codes, edges)


def rectified(builder: Builder, value: int) -> int:
    """ReLU."""
    return builder.point("where", builder.point("le", value, 0.0), 0.0, value)


def gine(width: int, place: str = "edge", code: int = -1) -> Program:
    """GINE: ``relu(x_j + e)``, summed; with a code, ``e`` is read from a table."""
    builder = Builder()
    source, edge = builder.operand("source", (width,)), builder.operand(place, (width,), code)
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
    gate, scalar, along = (
        builder.slice(product, 0, part * width, (part + 1) * width) for part in range(3)
    )
    vector = builder.point(
        "add", builder.point("mul", vectors, gate), builder.point("mul", direction, along)
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


def gat(heads: int, width: int, loops: bool = False) -> Program:
    """GAT: weights of each head from scores of both ends and the edge; with ``loops``, a node's own
    row instead of the edges from it to itself."""
    builder = Builder()
    rows = builder.operand("source", (heads, width))
    ends = [builder.operand(place, (heads,)) for place in ("source", "target", "edge")]
    own_score = builder.point("add", *ends[:2])
    score, own_score = (
        builder.point(
            "where", builder.point("le", value, 0.0), builder.point("mul", value, 0.2), value
        )
        for value in (builder.point("add", own_score, ends[2]), own_score)
    )
    if not loops:
        return builder.program([Result(rows, "softmax", weight=score)])
    score = builder.point("where", builder.loop(), -math.inf, score)
    return builder.program([Result(rows, "softmax", rows, score, own_score)])


def attention(heads: int, width: int) -> Program:
    """Attention by the dot product of the target's and the source's rows."""
    builder = Builder()
    query, key, value = (
        builder.operand(place, (heads, width)) for place in ("target", "source", "source")
    )
    weight = builder.total(builder.point("mul", query, key), [1])
    weight = builder.point("mul", weight, width**-0.5)
    return builder.program([Result(value, "softmax", weight=weight)])


def genconv(width: int) -> Program:
    """GENConv: a softmax of each column."""
    builder = Builder()
    source, edge = (builder.operand(place, (width,)) for place in ("source", "edge"))
    message = builder.point("add", rectified(builder, builder.point("add", source, edge)), 1e-7)
    scaled = builder.point("mul", message, builder.operand("all", ()))
    return builder.program([Result(message, "softmax", weight=scaled)])


def gin(width: int, kinds: int = 1) -> Program:
    """GIN: a sum over neighbours, of which there may be another kind, and ``1 + eps`` times the
    node's own row."""
    builder = Builder()
    rows, eps = builder.operand("source", (width,)), builder.operand("all", ())
    own = rows if kinds == 1 else builder.operand("target", (width,))
    start = builder.point("mul", builder.point("add", eps, 1.0), own)
    return builder.program([Result(rows, "sum", start)])


def gcn(width: int) -> Program:
    """GCN: rows times the roots of both ends, the node's own row instead of the edges from it to
    itself, a bias."""
    builder = Builder()
    rows, bias = builder.operand("source", (width,)), builder.operand("all", (width,))
    root = builder.point("mul", *(builder.operand(end, (1,)) for end in ("source", "target")))
    own_share, share = root, builder.point("where", builder.loop(), 0.0, root)
    scaled, start = (builder.point("mul", factor, rows) for factor in (share, own_share))
    return builder.program([Result(scaled, "sum", builder.point("add", start, bias))])


def pools(width: int) -> Program:
    """Maximum, mean and softmax of the rows of nodes, which are edges into their graphs."""
    builder = Builder()
    rows = builder.operand("edge", (width,))
    results = Result(rows, "max"), Result(rows, "mean"), Result(rows, "softmax", weight=rows)
    return builder.program(results)


MESSAGES = {
    "GINE of 64": gine(64),
    "GINE of 300": gine(300),
    "gated heads": gated(4, 64),
    "PaiNN": painn(64),
    "PNA": pna(4, 75),
    "NNConv": nnconv(16, 16),
    "GAT": gat(4, 16),
    "GAT with loops": gat(4, 16, loops=True),
    "attention": attention(4, 16),
    "attention of 300": attention(4, 75),
    "GENConv": genconv(64),
    "GIN": gin(64),
    "GIN of two kinds": gin(64, 2),
    "GCN": gcn(64),
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
