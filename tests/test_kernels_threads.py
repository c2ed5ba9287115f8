"""CPU kernels on torch's threads: the same bits on any number of threads, even more than rows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from staticgraph.kernels import graph_attention, table_sum

threads = importlib.import_module("staticgraph.kernels.threads")
pytestmark = pytest.mark.skipif(not threads.AVAILABLE, reason="torch has no libgomp of its own")
COUNTS = 1, 2, 3, 40


@pytest.fixture(autouse=True)
def every_loop_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "SMALL", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def on_each_number(function) -> list[Tensor]:
    """The result of ``function``, after checking equal bits on every number of threads."""
    found = []
    for count in COUNTS:
        torch.set_num_threads(count)
        assert threads.threads_for(1) == count
        found.append(function())
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(one, two)
    return found[0]


def with_gradients(out: Tensor, *inputs: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


def test_attention_with_dropout_in_graphs():
    """Graphs of zero, one and many nodes; every other operator is in ``test_kernels_records``."""
    torch.manual_seed(0)
    sizes = torch.tensor([0, 1, 30, 5, 7, 80])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).int()
    rows = torch.randn(int(sizes.sum()), 3 * 2 * 8, requires_grad=True)
    seed = torch.tensor(4)

    def attended() -> list[Tensor]:
        out = graph_attention(rows, starts, heads=2, longest=80, p=0.3, seed=seed, site=3)
        return with_gradients(out, rows)

    on_each_number(attended)


def test_the_first_index_outside_its_table_is_named_whoever_finds_it():
    index, offsets = torch.zeros(90, 2, dtype=torch.int64), torch.tensor([0, 4, 8])
    index[20, 1], index[80, 0] = 5, 9
    for count in COUNTS:
        torch.set_num_threads(count)
        with pytest.raises(IndexError, match="column 1 has 5 in row 20"):
            table_sum(index, offsets, torch.randn(8, 24))


def test_a_small_pass_stays_on_its_thread(monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 100)
    torch.set_num_threads(2)
    assert threads.threads_for(99) == 1
    assert threads.threads_for(100) == 2
