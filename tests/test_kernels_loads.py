"""The loads of the kernels on an H100 at 300 columns, a common width, from their compiled code.

A row of 300 float32 values is 75 times 16 bytes, of bfloat16 75 times 8: loads of features are that
wide where the compiler knows the width. Loading one value at a time takes four times as many
instructions for the same bytes.
"""

from __future__ import annotations

import functools

import pytest
import torch
from support.compiled import launches
from support.kernel_launches import (
    BOTH_WAYS,
    COUNT,
    EDGES,
    INDEX,
    NODES,
    OFFSETS,
    ONES,
    SEED,
    WIDTH,
)

from staticgraph.kernels.batch_norm import gpu as norm
from staticgraph.kernels.batch_norm import op
from staticgraph.kernels.batch_norm import small as small_norm
from staticgraph.kernels.table_sum import gpu as table

# Three blocks of 128 threads per multiprocessor with 65,536 registers.
MOST_REGISTERS = 168
# Kernels that load no rows of features, or one row for many that they store.
NARROW = {"neighbour_attention_targets", "segment_sum_backward"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_rows_of_300_are_loaded_by_16_and_8_bytes(name, dtype):
    x, e = torch.zeros(NODES, WIDTH, dtype=dtype), torch.zeros(EDGES, WIDTH, dtype=dtype)
    for each in launches(BOTH_WAYS[name], x, e):
        assert each.spilled == 0, each.name
        assert each.registers <= MOST_REGISTERS, each.name
        assert each.atomics == [], each.name
        if each.name not in NARROW:
            assert each.widest("ld") >= 32 * dtype.itemsize, each.name
    if name == "segment_sum":
        assert each.widest("st") >= 32 * dtype.itemsize


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tables_gradient_is_summed_on_the_matrix_unit(dtype):
    found = launches(table.backward, torch.zeros(NODES, WIDTH, dtype=dtype), INDEX, OFFSETS, 77)
    assert [each.matrix_instructions > 0 for each in found] == [True, False]
    wide = launches(table.backward, torch.zeros(NODES, WIDTH), INDEX.repeat(1, 90), OFFSETS, 77)
    assert wide[0].matrix_instructions == 0, "counts of 270 are not exact in bfloat16"


def test_a_norm_joins_its_chunks_at_once():
    """64 chunks fit one tile: the only loop of the second launch is over its own rows."""
    x = torch.zeros(64 * 64, WIDTH)
    rest = (ONES, ONES, COUNT, None, None, None, None, 1e-5, True)
    forward = launches(norm.forward, x, None, None, *rest)
    backward = launches(norm.backward, x, x, ONES, ONES, ONES, ONES, COUNT, None, 1e-5, True)
    assert [each.loops for each in forward + backward] == [1, 1, 1, 1]
    assert all(each.spilled == 0 for each in forward + backward)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_norm_of_few_rows_is_one_launch_without_a_loop(dtype):
    x = torch.zeros(op.ONE_LAUNCH_ROWS, WIDTH, dtype=dtype)
    both = [
        *launches(
            small_norm.forward, x, x, x, ONES, ONES, COUNT, ONES, ONES, SEED, 0.1, 1e-5, True
        ),
        *launches(small_norm.backward, x, x, ONES, ONES, ONES, ONES, COUNT, x, 1e-5, True),
    ]
    assert len(both) == 2
    for each in both:
        assert (each.loops, each.spilled, each.atomics) == (0, 0, [])
        assert each.registers <= 128, "more than a block of 512 threads can have"
        assert each.widest("ld") >= 32 * dtype.itemsize


def test_few_rows_go_by_one_launch_many_by_two(monkeypatch):
    """The calls of the CUDA operator, by rows; a cumulative mean always takes two forward."""
    called = []
    for module in (norm, small_norm):
        for way in ("forward", "backward"):
            note = functools.partial(lambda *given, name: called.append(name), name=module.__name__)
            monkeypatch.setattr(module, way, note)
    few, many = torch.zeros(op.ONE_LAUNCH_ROWS, 4), torch.zeros(op.ONE_LAUNCH_ROWS + 1, 4)
    for x, momentum, forward, backward in (
        (few, 0.1, "small", "small"),
        (few, None, "gpu", "small"),
        (many, 0.1, "gpu", "gpu"),
    ):
        op._on_cuda(x, None, None, ONES, ONES, COUNT, ONES, ONES, SEED, momentum, 1e-5, True, None)
        op._backward_on_cuda(x, x, ONES, ONES, ONES, ONES, COUNT, None, 1e-5, True)
        assert [name.rsplit(".")[-1] for name in called] == [forward, backward]
        expected = [1 + (way == "gpu") for way in (forward, backward)]
        assert [op.launches(x, momentum is None), op.launches(x, False)] == expected
        called.clear()
