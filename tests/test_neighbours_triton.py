"""The Triton kernels of programs without a GPU, as compiled for an H100."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.compiled import OLDER, Compiled, Launch, compile_launch, narrow_products, noted
from support.drawn_programs import drawn_program
from support.messages import MESSAGES, drawn_call, with_derivative

from staticgraph.dryrun.operations import further_launches
from staticgraph.kernels.edges import order_edges
from staticgraph.kernels.neighbours import (
    Builder,
    Program,
    Result,
    cpu_operations,
    gpu,
    gpu_operations,
)
from staticgraph.kernels.neighbours.derivative import accompanied
from staticgraph.kernels.neighbours.operations import POINTWISE
from staticgraph.kernels.neighbours.program import known
from staticgraph.kernels.register import CUDA

# Registers of a thread, forward and backward, with Triton 3.9: the most of both dtypes and of all
# loops, and an eighth.
REGISTERS = {
    "GINE of 64": (72, 96),
    "GINE of 300": (67, 72),
    "gated heads": (45, 54),
    "PaiNN": (63, 90 if OLDER else 72),
    "PNA": (72, 95),
    "NNConv": (70, 45),
    "GAT": (69, 67),
    "GAT with loops": (72, 66),
    "attention": (64, 88),
    "attention of 300": (63, 72),
    "GENConv": (69, 87),
    "GIN": (66, 68),
    "GIN of two kinds": (64, 58),
    "GCN": (72, 72),
}


def launched(program: Program, dtype: torch.dtype) -> list[Launch]:
    """The launches of a program."""
    call = drawn_call(1, dtype, program)
    return noted(CUDA["neighbours"], known(program), call.operands, call.codes, list(call.edges))


def compiled(program: Program, dtype: torch.dtype) -> list[Compiled]:
    """The launches of a program, compiled."""
    return [compile_launch(launch) for launch in launched(program, dtype)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_and_its_derivative_stay_in_registers(name, dtype):
    forward, backward = with_derivative(MESSAGES[name])
    for program, most in zip((forward, backward), REGISTERS[name], strict=True):
        for each in compiled(program, dtype):
            assert each.spilled == 0
            assert each.registers <= most
            assert each.atomics == []
            assert each.loops <= 1
            # 300 columns in one piece; the gradients of PNA are in pieces of 75.
            if name == "GINE of 300" or (name == "PNA" and program is forward):
                assert each.widest("ld") == 32 * dtype.itemsize
                assert each.widest("st") == 128


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [*MESSAGES, *range(25)])
def test_numbers_are_not_rounded_and_addresses_have_64_bits(number):
    program = (
        MESSAGES[number] if isinstance(number, str) else drawn_program(number, tables=False)[0]
    )
    if isinstance(number, int) and gpu.supports(program) is not None:
        return
    for one in with_derivative(program):
        assert gpu.supports(one) is None
        for launch in launched(one, torch.float64) if one.results else ():
            text = launch.ttir()
            assert not re.findall(r"arith\.(?:truncf|extf) .*", text)
            assert narrow_products(text) == []
            assert "atomic" not in text


@pytest.mark.parametrize("reduction", ["max", "sum"])
def test_values_of_a_maximum_have_the_same_bits_in_its_derivative(reduction):
    """The derivative compares values that it computes again with the maximum: no product may be
    fused with a sum in one of both kernels alone."""
    builder = Builder()
    source, target, edge = (builder.operand(place, (64,)) for place in ("source", "target", "edge"))
    value = builder.point("add", builder.point("mul", source, edge), target)
    program = builder.program([Result(value, reduction)])
    for one in with_derivative(program)[: 1 if reduction == "sum" else 2]:
        for each in compiled(one, torch.float32):
            assert ("fma.rn" in each.ptx) == (reduction == "sum")


def summed(shape: tuple[int, ...], dims: list[int], reduction: str) -> Program:
    builder = Builder()
    rows = builder.operand("source", shape)
    value = builder.point("sin", builder.total(rows, dims))
    return builder.program([Result(value, reduction)])


def mixed() -> Program:
    """Rows of eight numbers, in two parts each, read as rows of four."""
    builder = Builder()
    parts = [builder.operand("source", (2, width)) for width in (3, 5)]
    rows = builder.view(builder.cat(parts, 1), (4, 4))
    gated = builder.point("mul", rows, builder.operand("edge", (4, 1)))
    return builder.program([Result(gated, "sum")])


def test_a_value_that_is_also_summed_is_loaded_once():
    builder = Builder()
    rows = builder.operand("source", (4, 8))
    results = Result(rows, "sum"), Result(builder.total(rows, [1]), "rows")
    ((_, text),) = gpu._texts(builder.program(results))
    assert text.source.count("to(WIDE)") == 1


def deep() -> Program:
    """A thousand operations, each of the one before."""
    builder = Builder()
    value = builder.operand("source", (4,))
    for _ in range(1000):
        value = builder.point("sin", value)
    return builder.program([Result(value, "sum")])


def test_a_row_may_be_wider_than_a_tile_if_it_is_made_of_parts():
    builder = Builder()
    parts = [builder.operand("source", (6000,)), builder.operand("edge", (5000,))]
    value = builder.point("add", builder.operand("edge", (11000,)), builder.cat(parts, 0))
    program = builder.program([Result(value, "sum")])
    assert gpu.supports(program) is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (summed((4, 8), [1], "max"), "maximum over edges of a sum over columns"),
        (summed((100, 100), [0], "sum"), "tiles of 16384 numbers"),
        (summed((9000,), [], "sum"), "tiles of 16384 numbers"),
        (deep(), "operations, too many of them one after another"),
        (mixed(), "the operation 'cat' is followed by a view that mixes its parts"),
    ],
)
def test_what_cannot_be_written_has_a_reason(program, reason):
    assert reason in (gpu.supports(program) or "")
    with pytest.raises(NotImplementedError, match=re.escape(reason)):
        launched(program, torch.float32)


def test_equal_texts_are_one_kernel_of_tritons_cache_without_a_file():
    ((into, text),) = gpu._texts(MESSAGES["GINE of 64"])
    first, second = (gpu._kernel(text, into) for _ in range(2))
    assert first.cache_key == second.cache_key
    assert "tl.store" in first.src
    assert not Path(first.fn.__code__.co_filename).exists()


@pytest.mark.parametrize(("degree", "lanes", "warps"), [(2, 8, 1), (30, 32, 4), (500, 32, 4)])
def test_many_edges_of_a_node_are_shared_out_among_warps(degree, lanes, warps):
    builder = Builder()
    program = builder.program([Result(builder.operand("source", (64,)), "sum")])
    ends = torch.zeros(10 * degree, dtype=torch.int64), torch.arange(10).repeat(degree)
    edges = [*ends, *order_edges(*ends, 10, 10)]
    (launch,) = noted(CUDA["neighbours"], known(program), [torch.ones(10, 64)], [], edges)
    assert launch.arguments["LANES"] == lanes
    assert launch.options["num_warps"] == warps
    each = compile_launch(launch)
    assert each.spilled == 0
    assert each.registers <= 72


def test_a_softmax_and_what_its_derivative_needs_share_their_exponentials():
    ((_, text),) = gpu._texts(accompanied(MESSAGES["attention"]))
    assert text.source.count("tl.exp(") == 2  # one per edge, and one where its lanes are joined
    assert text.source.count("tl.maximum(") == 1


def test_what_belongs_to_nodes_alone_has_no_loop():
    builder = Builder()
    row, value = builder.operand("source", (4,)), builder.number(0.0, (4,))
    for how in ("sum", "source_sum"):
        ((_, text),) = gpu._texts(builder.program([Result(value, how, row)]))
        assert "for place" not in text.source


def test_every_operation_has_a_form_on_both_devices():
    assert gpu_operations.OPERATIONS.keys() == cpu_operations.OPERATIONS.keys() == POINTWISE.keys()


def test_every_loop_is_a_launch():
    names = []
    for program in with_derivative(MESSAGES["gated heads"]):
        launches = launched(program, torch.float32)
        arguments = known(program), [], [], [torch.empty(9)] * 5
        assert further_launches("staticgraph::neighbours", arguments) == len(launches) - 1
        names += [launch.name for launch in launches]
    assert [name.rsplit("_", 1)[0] for name in names] == [
        "neighbours_into",
        "neighbours_into",
        "neighbours_out_of",
    ]
