"""The distances that TransE trains with keep their precision for nearby rows."""

from __future__ import annotations

import pytest
import torch

from staticgraph.outofcore.training.decoders import TransE
from staticgraph.outofcore.training.distances import distances


def plain(query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """The distances computed from differences, in the inputs' dtype."""
    apart = query.unsqueeze(-2) - candidates.unsqueeze(-3)
    return (apart.square().sum(-1) + 1e-12).sqrt()


@pytest.mark.parametrize("near", [None, 1e-1, 1e-2, 1e-3])
def test_they_are_those_of_float64_however_near(near):
    torch.manual_seed(0)
    candidates = torch.randn(2, 40, 50)
    query = torch.randn(2, 9, 50) if near is None else candidates[:, :9] + near
    exact = [tensor.double().requires_grad_() for tensor in (query, candidates)]
    ours = [tensor.clone().requires_grad_() for tensor in (query, candidates)]
    expected, found = plain(*exact), -TransE().scores(*ours)
    # One rounding of the square and one of its root.
    torch.testing.assert_close(found.double(), expected, rtol=2.5e-7, atol=0.0)
    # By logsumexp, as in training, where the nearest counts most.
    by_exact = torch.autograd.grad((-expected).logsumexp(-1).sum(), exact)
    by_ours = torch.autograd.grad((-found).logsumexp(-1).sum(), ours)
    # The cancelling terms, entries over the distance, lose a few float32 roundings each.
    least = float(expected.detach().min())
    lost = 8 * 2**-24 * float(candidates.abs().max()) * max(1.0, 1.0 / least)
    for now, then in zip(by_ours, by_exact, strict=True):
        assert float((now - then).abs().max()) < lost


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    ends = [torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5)]
    assert torch.autograd.gradcheck(distances, ends)


def test_rows_that_meet_have_a_distance_and_a_finite_gradient():
    rows = torch.randn(6, 50).requires_grad_()
    found = distances(rows, rows)
    assert found.diagonal().max() < 1e-5
    (gradient,) = torch.autograd.grad(found.sum(), rows)
    assert gradient.isfinite().all()
