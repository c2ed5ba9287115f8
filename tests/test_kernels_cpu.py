"""The CPU kernels against their references in float64: results, gradients, edge cases."""

from __future__ import annotations

import pytest
import torch
from support.kernel_oracle import assert_running_statistics

from staticgraph.kernels import (
    batch_norm,
    table_sum,
)
from staticgraph.kernels.batch_norm import Running
from staticgraph.kernels.table_sum import fold_codes


@pytest.mark.parametrize("lookup", [fold_codes, lambda i, o: table_sum(i, o, torch.ones(6, 2))])
@pytest.mark.parametrize("value", [-1, 2])
def test_an_index_outside_its_table_is_named(lookup, value):
    index = torch.tensor([[0, 1], [3, value]])
    with pytest.raises(IndexError, match=f"column 1 has {value} in row 1, but its table has 2"):
        lookup(index, torch.tensor([0, 4, 6]))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_torchs(momentum):
    assert_running_statistics(momentum, columns=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operands_with_gaps_or_of_other_dtypes_are_read_as_what_they_are(dtype):
    """A kernel that takes addresses does not see strides."""
    wide = torch.promote_types(dtype, torch.float32)
    weight, bias = torch.randn(6, 2, dtype=dtype).unbind(1)
    moved = Running(
        torch.zeros(6, 2, dtype=dtype)[:, 0],
        torch.ones(6, 2, dtype=torch.float64)[:, 1],
        torch.tensor(3, dtype=torch.int32),
        None,
    )
    plain = Running(torch.zeros(6, dtype=wide), torch.ones(6, dtype=wide), torch.tensor(3), None)
    x, count = torch.randn(9, 6).to(dtype), torch.tensor(7)
    given = {"eps": 1e-5, "relu": True}
    found, mean, var = batch_norm(x, weight, bias, count, running=moved, **given)
    expected = batch_norm(x, weight.clone(), bias.clone(), count, running=plain, **given)
    assert torch.equal(found, expected[0])
    assert torch.equal(mean, expected[1])
    assert torch.equal(var, expected[2])
    assert int(moved.tracked) == int(plain.tracked) == 4
    torch.testing.assert_close(moved.mean, plain.mean.to(dtype))
    torch.testing.assert_close(moved.var, plain.var.to(torch.float64))
