"""``head_products``: a few values per node and head, compared with a batched matrix product."""

from __future__ import annotations

import pytest
import torch

from staticgraph.kernels.head_products import head_products, head_products_reference

NODES, HEADS, COLUMNS = 37, 3, 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_the_product_of_matrices(dtype):
    """Forward and both gradients; float32 vectors keep their precision with bfloat16 rows."""
    torch.manual_seed(0)
    rows = torch.randn(NODES, HEADS * COLUMNS).to(dtype).requires_grad_()
    kind = torch.float32 if dtype == torch.bfloat16 else dtype
    weight = torch.randn(2, HEADS, COLUMNS, dtype=kind, requires_grad=True)
    found, expected = head_products(rows, weight), head_products_reference(rows, weight)
    assert found.shape == (HEADS, NODES, 2)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    wanted = torch.autograd.grad(expected, (rows, weight), grad)
    for one, other in zip(torch.autograd.grad(found, (rows, weight), grad), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_torch_knows_its_shapes_and_derivative():
    rows = torch.randn(NODES, HEADS * COLUMNS, requires_grad=True)
    weight = torch.randn(2, HEADS, COLUMNS, requires_grad=True)
    torch.library.opcheck(torch.ops.staticgraph.head_products.default, (rows, weight))


def test_columns_of_other_heads_are_refused():
    with pytest.raises(ValueError, match="rows of 60 columns and vectors of 3 x 21"):
        head_products(torch.randn(NODES, 60), torch.randn(2, 3, 21))
