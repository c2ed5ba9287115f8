"""CPU kernels on torch's threads: the same bits on any number of threads, even more than rows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.drawn_programs import drawn_edges

from staticgraph.kernels import table_sum
from staticgraph.kernels.cpu_loop import CpuLoop, Vector
from staticgraph.kernels.edges import Edges, order_edges
from staticgraph.kernels.neighbours import Builder, Result, neighbours

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


@pytest.mark.parametrize("sorts", [True, False])
def test_sums_of_many_edges_have_the_same_bits(sorts):
    """Of a table, of sources and of destinations, each with so many terms that their order shows:
    pieces that depended on the number of threads would add them in another one."""
    edges = drawn_edges(np.random.default_rng(0), 50, 2000)
    if not sorts:
        ends = [end[torch.randperm(2000)] for end in edges[:2]]
        edges = Edges(*ends, *order_edges(*ends, 50, 50))
    builder = Builder()
    rows = [builder.operand("source", (24,)), builder.operand("table", (24,), 0)]
    target = builder.point("sigmoid", builder.operand("target", (24,)))
    gated = builder.point("mul", builder.point("sigmoid", rows[0]), target)
    message = builder.point("mul", gated, rows[1])
    weight = builder.total(builder.point("mul", *rows), [0])
    program = builder.program([Result(message, "sum"), Result(message, "softmax", weight=weight)])
    torch.manual_seed(0)
    operands = [torch.randn(count, 24).requires_grad_() for count in (50, 5, 50)]
    codes = [torch.randint(0, 5, (2000,))]
    found = []
    for count in COUNTS:
        torch.set_num_threads(count)
        outs = neighbours(program, operands, codes, edges)
        found.append([*outs, *torch.autograd.grad([out.sin().sum() for out in outs], operands)])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
