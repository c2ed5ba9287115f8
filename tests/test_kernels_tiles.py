"""Small matrix products by tiles on a CPU equal torch's for any sizes."""

from __future__ import annotations

import pytest
import torch

from staticgraph.kernels.linear import cpu, op

# Fewer rows than two tiles, remaining rows, and columns for wide and narrow tiles.
SIZES = [(4, 1, 16), (5, 9, 48), (7, 16, 64), (30, 20, 80), (258, 64, 144)]


def near(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_layer(relu, biased):
    for rows, terms, columns in SIZES:
        torch.manual_seed(rows)
        x, weight = torch.randn(rows, terms), torch.randn(columns, terms)
        bias = torch.randn(columns) if biased else None
        expected = torch.nn.functional.linear(
            x.double(), weight.double(), None if bias is None else bias.double()
        )
        assert cpu.product_serves(rows, terms, columns)
        near(cpu.linear(x, weight, bias, relu), expected.relu() if relu else expected)


def test_gradients():
    """For the input, and for the weight with fewer, as many and more rows than one partial sum."""
    for rows, terms, columns in SIZES:
        torch.manual_seed(rows)
        grad, weight = torch.randn(rows, terms), torch.randn(terms, columns)
        near(cpu.gradient_of_input(grad, weight), grad.double() @ weight.double())
    for rows in (0, 1, cpu.STRETCH, cpu.STRETCH + 1, 3 * cpu.STRETCH - 1):
        for height, columns in ((4, 16), (12, 80), (64, 64)):
            grad, x = torch.randn(rows, height), torch.randn(rows, columns)
            assert cpu.weight_serves(height, columns)
            dweight, dbias = cpu.gradient_of_weight(grad, x)
            near(dweight, grad.double().t() @ x.double())
            near(dbias, grad.double().sum(0))


def test_a_nan_stays_one_and_spreads_no_further():
    x, weight = torch.ones(6, 3), torch.ones(16, 3)
    x[2, 1], weight[5, 0] = torch.nan, torch.nan
    out = cpu.linear(x, weight, None, relu=True)
    expected = torch.zeros(6, 16, dtype=torch.bool)
    expected[2], expected[:, 5] = True, True
    assert torch.equal(out.isnan(), expected)


@pytest.mark.parametrize("size", [(3, 8, 16), (8, 8, 20), (40000, 32, 32), (8, 96, 96)])
def test_the_operator_gives_other_sizes_to_the_library(size, monkeypatch):
    """Too few rows, columns that are not whole vectors, too many products, a weight that takes
    longer to transpose than to multiply by."""
    rows, terms, columns = size
    called = []
    monkeypatch.setattr(cpu, "linear", lambda *given: called.append("tiles"))
    monkeypatch.setattr(op, "_product", lambda *given: called.append("library"))
    op._on_cpu(torch.randn(rows, terms), torch.randn(columns, terms), None, False, torch.float32)
    op._on_cpu(torch.randn(16, 16), torch.randn(16, 16), None, False, torch.float32)
    assert called == ["library", "tiles"]


def test_views_are_read_as_they_are_said():
    """A transposed weight, and rows of a wider tensor."""
    torch.manual_seed(0)
    wide, weight = torch.randn(20, 48), torch.randn(32, 16)
    near(cpu.linear(wide[:, 8:40], weight.t(), None, False), (wide[:, 8:40] @ weight).double())
