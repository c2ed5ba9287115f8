"""Programs over edges on the CPU: any expression of rows, any reduction and their derivatives,
first and second, against the same in eager torch; and the functions that their code is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.drawn_programs import CHECKS, drawn_case, of_what_is_far_from_zero
from support.messages import gin

from staticgraph.jit import kernel
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.neighbours import (
    Builder,
    Program,
    Result,
    cpu,
    neighbours,
    neighbours_reference,
    program,
)
from staticgraph.kernels.neighbours.formula import formula
from staticgraph.kernels.neighbours.operations import POINTWISE


@kernel
def exponentials(x, out):
    for place in range(len(x)):
        out[place] = exp(x[place])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_within_two_units_of_the_last_place(dtype):
    limits = np.finfo(dtype)
    x = np.linspace(np.log(limits.tiny), np.log(limits.max) - 1, 5001).astype(dtype)
    x = np.concatenate([x, np.array([-np.inf, np.log(limits.tiny) - 1, np.inf, np.nan], dtype)])
    out = np.empty_like(x)
    exponentials(x, out)
    expected = np.exp(x[:-4].astype(np.longdouble))
    assert (np.abs(out[:-4] - expected) <= 2 * limits.eps * expected)[1:].all()
    np.testing.assert_array_equal(out[-4:], [0, 0, np.inf, np.nan])


def edge_by_edge(operation: str, x: torch.Tensor) -> torch.Tensor:
    """One function of numbers, by a program."""
    builder = Builder()
    value = builder.point(operation, builder.operand("edge", ()))
    return rows_of(builder.program([Result(value, "rows")]), x)


def rows_of(program: Program, x: torch.Tensor) -> torch.Tensor:
    """The result of a program of one number per edge, each into a node of its own."""
    index = torch.arange(len(x))
    row = torch.arange(len(x) + 1).int()
    return neighbours(program, [x], (), Edges(index, index, row, row, index.int()))[0]


# Numbers where a function is hard, and how many units in the last place it may be off.
FUNCTIONS = {
    "exp": (np.linspace(-700, 700, 4001), 2),
    "log": (np.concatenate([np.geomspace(1e-310, 1e300, 3001), np.linspace(0.5, 2, 2001)]), 3),
    "log1p": (np.concatenate([np.geomspace(1e-20, 1e30, 3001), np.linspace(-0.99, 1, 2001)]), 4),
    "tanh": (np.concatenate([np.linspace(-22, 22, 4001), np.geomspace(1e-30, 1, 999)]), 4),
    "sigmoid": (np.linspace(-700, 700, 4001), 4),
    "softplus": (np.linspace(-40, 40, 4001), 5),
    "sqrt": (np.geomspace(1e-300, 1e300, 999), 1),
    "erf": (np.linspace(-6, 6, 999), 2),
    "sin": (np.linspace(-9, 9, 999), 2),
    "cos": (np.linspace(-9, 9, 999), 2),
}
EXACT: dict[str, Any] = {
    **{name: getattr(np, name, None) for name in FUNCTIONS},
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(np.longdouble(0), x),
    "erf": lambda x: torch.erf(torch.tensor(np.asarray(x, np.float64))).numpy(),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_exact_to_its_last_places(name, dtype):
    x, units = FUNCTIONS[name]
    limits = np.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        x = x.astype(dtype)
        exact = EXACT[name](x.astype(np.longdouble))
    inside = np.isfinite(x) & (np.abs(exact) < limits.max / 4) & (np.abs(exact) > limits.tiny)
    inside |= exact == 0
    found = edge_by_edge(name, torch.from_numpy(x)).numpy()
    off = np.abs(found - exact)[inside] / np.spacing(np.abs(exact[inside]).astype(dtype))
    assert inside.sum() > 100
    assert off.max() <= units, (name, off.max(), x[inside][off.argmax()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_at_its_ends_is_torchs(name, dtype):
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, -1.0, 1e-45], dtype=dtype)
    torch.testing.assert_close(
        edge_by_edge(name, x), POINTWISE[name].torch(x), equal_nan=True, rtol=1e-6, atol=1e-30
    )


@pytest.mark.parametrize(("operation", "number"), [("mul", 0.0), ("add", 0.0), ("mul", -0.0)])
def test_constants_of_a_message_are_not_simplified_away(operation, number):
    x = torch.tensor([torch.nan, torch.inf, -1.0, 0.0, -0.0])
    builder = Builder()
    program = builder.program(
        [Result(builder.point(operation, builder.operand("edge", ()), number), "rows")]
    )
    found, expected = rows_of(program, x), POINTWISE[operation].torch(x, number)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(found[2:].signbit(), expected[2:].signbit())


def assert_alike(found, expected, bound, what):
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None and other is None:
            continue
        one = torch.zeros_like(other) if one is None else one
        other = torch.zeros_like(one) if other is None else other
        if one.numel():
            error = ((one - other).abs().max() / (other.abs().max() + 1)).item()
            assert error < bound, (what, number, error)


def test_machine_code_is_kept_and_read_only_if_nobody_else_could_write_it(tmp_path, monkeypatch):
    def forget():
        cpu._loops.cache_clear()
        monkeypatch.setattr(program, "_PROGRAMS", {})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpu._folder.cache_clear()
    forget()
    x = torch.linspace(-3, 3, 7)
    expected = edge_by_edge("tanh", x)
    (path,) = tmp_path.rglob("programs/*/*.o")
    before = path.stat().st_ino
    forget()
    assert torch.equal(edge_by_edge("tanh", x), expected)
    assert path.stat().st_ino == before
    path.write_bytes(b"of somebody else")
    path.chmod(0o666)
    forget()
    assert torch.equal(edge_by_edge("tanh", x), expected)
    assert path.stat().st_ino != before
    cpu._folder.cache_clear()


@pytest.mark.parametrize(
    ("seed", "program"), [*((seed, None) for seed in range(60)), (1, gin(4, 2)), (4, gin(4, 2))]
)
def test_a_program_and_its_derivatives_are_the_same_in_eager_torch(seed, program):
    program, operands, codes, edges = drawn_case(seed, torch.float64, program)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for function in (neighbours, neighbours_reference):
        generator.manual_seed(seed)
        outs = function(program, operands, codes, edges)
        weights = [torch.randn(out.shape, dtype=out.dtype, generator=generator) for out in outs]
        terms = [(out * w).sum() for out, w in zip(outs, weights, strict=True) if out.requires_grad]
        first: Any = []
        second: Any = []
        if terms:
            total: Any = sum(terms)
            first = torch.autograd.grad(total, operands, allow_unused=True, create_graph=True)
            parts = [one.sin().sum() for one in first if one is not None and one.requires_grad]
            if parts:
                total = sum(parts)
                second = torch.autograd.grad(total, operands, allow_unused=True)
        found.append((outs, first, second))
    for what, mine, others in zip(("result", "gradient", "second"), *found, strict=True):
        if others or mine:
            assert_alike(mine, others or [None] * len(mine), 1e-11, what)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_mean_and_deviation_of_what_is_far_from_zero(dtype):
    of_what_is_far_from_zero(neighbours, dtype)


@pytest.mark.parametrize("check", CHECKS)
def test_reductions(check):
    check(neighbours)


def loops_of_one_node(count):
    ends, pointers = torch.zeros(count, dtype=torch.int64), torch.tensor([0, count]).int()
    return Edges(ends, ends, pointers, pointers, torch.arange(count).int())


def test_a_small_deviation_is_zero_as_in_pyg():
    builder = Builder()
    program = builder.program([Result(builder.operand("edge", (2,)), "std")])
    rows = torch.arange(12.0).view(6, 2)
    for factor, zero in ((1e-4, True), (1.0, False)):
        deviation = neighbours(program, [factor * rows], (), loops_of_one_node(6))[0]
        assert bool((deviation == 0).all()) is zero


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_of_its_table_is_named(index):
    builder = Builder()
    program = builder.program([Result(builder.operand("table", (2,), 0), "sum")])
    codes = torch.tensor([0, index])
    with pytest.raises(IndexError, match=f"index {index} is outside of a table of 5 rows"):
        neighbours(program, [torch.ones(5, 2)], [codes], loops_of_one_node(2))


def test_equal_programs_have_one_key_and_print_what_they_compute():
    def written():
        builder = Builder()
        source, edge = builder.operand("source", (4,)), builder.operand("edge", (4,))
        message = builder.point("tanh", builder.point("add", source, edge))
        return builder.program([Result(message, "sum")])

    assert written() == written()
    assert written().key == written().key
    assert str(written()).splitlines()[2:] == [
        "v2 [4] = add v0 v1",
        "v3 [4] = tanh v2",
        "sum of v3",
    ]
    other = written().taking([Result(0, "max")])
    assert other != written()
    assert len(other.values) == 1


def test_a_formula_says_what_a_program_computes():
    builder = Builder()
    source, edge, node = (builder.operand(end, (4,)) for end in ("source", "edge", "target"))
    total = builder.point("add", source, edge)
    leaky = builder.point(
        "where", builder.point("lt", 0.0, total), total, builder.point("mul", total, 0.2)
    )
    relu = builder.point("where", builder.point("le", total, 0.0), 0.0, total)
    gate = builder.point("mul", relu, builder.point("sigmoid", builder.point("sub", edge, node)))
    weight = builder.total(leaky, [0])
    results = Result(gate, "mean+max"), Result(source, "softmax", node, weight, weight)
    program = builder.program([*results, Result(gate, "rows"), Result(total, "sum", node)])
    found = [formula(program, one, ["h", "e", "g"]) for one in program.results]
    assert found == [
        "mean+max of relu(h[source] + e) * sigmoid(e - g[target])",
        "sum of h[source], weighed by softmax of sum(leaky_relu(h[source] + e)), and g",
        "relu(h[source] + e) * sigmoid(e - g[target])",
        "sum of h[source] + e, and g",
    ]
