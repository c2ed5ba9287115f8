"""Reductions over the edges of a node at their limits, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import Builder, Result
from staticgraph.kernels.neighbours.program import INTO

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
    return [torch.tensor([one for row in values for one in row])], edges


def of_nothing_of_one_of_ties_and_of_nan(run: Run) -> None:
    """Each reduction of nodes of few edges."""
    nan = math.nan
    operands, edges = numbers_of([[], [3.0], [2, -1, -1, 2], [1, nan, 2], [nan], [0, 1, 0, 1]])
    builder = Builder()
    value = builder.operand("edge", ())
    program = builder.program([Result(value, name, weight=value) for name in INTO])
    found = dict(zip(INTO, run(program, operands, [], edges), strict=True))
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
        assert torch.allclose(found[name], torch.tensor(numbers), equal_nan=True), name
    real = torch.tensor([0, 1, 2, 5])
    assert found["min_ties"][real].tolist() == [1, 1, 2, 3]
    assert found["max_ties"][real].tolist() == [1, 1, 2, 2]


def of_weights_that_are_far_apart_or_infinite(run: Run) -> None:
    """Weights of -inf are those of edges that are left out."""
    inf = math.inf
    rows = [[], [-inf], [-inf, 2, -inf], [-1e30, 1e30, -1e30, 1e30], [-3e38, 3e38], [0, -90, 90]]
    weights, edges = numbers_of([[float(one) for one in row] for row in rows])
    builder = Builder()
    value, weight = (builder.operand("edge", ()) for _ in range(2))
    results = Result(value, "softmax", weight=weight), Result(weight, "logsumexp")
    values = torch.arange(1.0, 1 + len(weights[0]))
    softmax, whole = run(builder.program(results), [values, *weights], [], edges)
    assert softmax.tolist() == [0, 0, 3, 7, 10, 13]
    assert torch.equal(whole, torch.tensor([0, 0, 2, 1e30, 3e38, 90]))


CHECKS = [of_nothing_of_one_of_ties_and_of_nan, of_weights_that_are_far_apart_or_infinite]
