"""CPU kernels on torch's threads: the same bits on any number of threads, even more than rows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from staticgraph.kernels import table_sum
from staticgraph.kernels.cpu_loop import CpuLoop, Vector

threads = importlib.import_module("staticgraph.kernels.threads")
pytestmark = pytest.mark.skipif(not threads.AVAILABLE, reason="torch has no libgomp of its own")
COUNTS = 1, 2, 3, 40


@pytest.fixture(autouse=True)
def every_loop_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "SMALL", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_first_index_outside_its_table_is_named_whoever_finds_it():
    index, offsets = torch.zeros(90, 2, dtype=torch.int64), torch.tensor([0, 4, 8])
    index[20, 1], index[80, 0] = 5, 9
    for count in COUNTS:
        torch.set_num_threads(count)
        with pytest.raises(IndexError, match="column 1 has 5 in row 20"):
            table_sum(index, offsets, torch.randn(8, 24))


@CpuLoop
def threads_of(x: Vector, threads: int) -> int:
    return threads + 0 * len(x)


def test_a_small_pass_stays_on_its_thread(monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 100)
    torch.set_num_threads(2)
    assert threads_of([torch.zeros(99)], torch.float32, []) == 1
    assert threads_of([torch.zeros(100)], torch.float32, []) == 2
