"""Dropout with its sum and ReLU: the reference's arithmetic, the right rate, torch's seed."""

from __future__ import annotations

import math

import pytest
import torch

from staticgraph.kernels.dropout_sum import draw_mask, dropout_sum


def test_the_share_is_right_and_places_are_independent():
    """The rate is within five standard deviations of the binomial; neighbours in a row, in a column
    and at another site agree as often as by chance."""
    p, shape = 0.25, torch.Size((400, 64))
    mask, other = (draw_mask(torch.tensor([7]), site, shape, p) for site in (0, 1))
    share = mask.double().mean().item()
    assert abs(share - (1 - p)) < 5 * math.sqrt(p * (1 - p) / mask.numel())
    both = p * p + (1 - p) ** 2
    pairs = [(mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1]), (mask, other)]
    for a, b in pairs:
        agree = (a == b).double().mean().item()
        assert abs(agree - both) < 6 * math.sqrt(both * (1 - both) / a.numel())


def test_a_rows_fate_does_not_depend_on_the_bucket_or_the_threads():
    seed, before = torch.tensor([11]), torch.get_num_threads()
    small = draw_mask(seed, 2, torch.Size((50, 64)), 0.5)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(draw_mask(seed, 2, torch.Size((700, 64)), 0.5)[:50], small)
    finally:
        torch.set_num_threads(before)


def test_a_share_of_one_is_refused():
    with pytest.raises(ValueError, match=r"p=1\.0"):
        dropout_sum(torch.ones(1, 1), None, torch.tensor([0]), 0, p=1.0)
