"""The loads of the kernels on an H100 at 300 columns, a common width, from their compiled code.

A row of 300 float32 values is 75 times 16 bytes, of bfloat16 75 times 8: loads of features are that
wide where the compiler knows the width. Loading one value at a time takes four times as many
instructions for the same bytes.
"""

from __future__ import annotations

import pytest
import torch
from support.compiled import compile_launch, launches
from support.kernel_launches import launched

from staticgraph.kernels.batch_norm import gpu as norm
from staticgraph.kernels.table_sum import gpu as table

# Three blocks of 128 threads per multiprocessor with 65,536 registers.
MOST_REGISTERS = 168


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["table_sum", "batch_norm", "dropout_sum"])
def test_rows_of_300_are_loaded_by_16_and_8_bytes(name, dtype):
    for each in map(compile_launch, launched(name, dtype)):
        assert each.spilled == 0, each.name
        assert each.registers <= MOST_REGISTERS, each.name
        assert each.atomics == [], each.name
        assert each.widest("ld") >= 32 * dtype.itemsize, each.name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tables_gradient_is_summed_on_the_matrix_unit(dtype):
    index, offsets = torch.zeros(23, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    found = launches(table.backward, torch.zeros(23, 300, dtype=dtype), index, offsets, 77)
    assert [each.matrix_instructions > 0 for each in found] == [True, False]
    wide = launches(table.backward, torch.zeros(23, 300), index.repeat(1, 90), offsets, 77)
    assert wide[0].matrix_instructions == 0, "counts of 270 are not exact in bfloat16"


def test_a_norm_joins_its_chunks_at_once():
    """64 chunks fit one tile: the only loop of the second launch is over its own rows."""
    x, ones = torch.zeros(64 * 64, 300), torch.ones(300)
    count = torch.tensor(23)
    rest = (ones, ones, count, None, None, None, None, 1e-5, True)
    forward = launches(norm.forward, x, None, None, *rest)
    backward = launches(norm.backward, x, x, ones, ones, ones, ones, count, 1e-5, True)
    assert [each.loops for each in forward + backward] == [1, 1, 1, 1]
    assert all(each.spilled == 0 for each in forward + backward)
