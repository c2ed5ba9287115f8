"""What ranks send each other: sums of gradients, and messages."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.alike import squared
from support.ranked_net import BATCH, model_of, store_of
from support.ranks import on_ranks
from support.runners import sgd_runner
from torch import nn
from torch.overrides import TorchFunctionMode

import staticgraph as sg
from staticgraph.distributed.ranks import Ranks, ranks_for
from staticgraph.distributed.reduction import COLUMNS, Reduction, Share


def _reduced() -> list:
    """Reduce parameters of three dtypes, one with a gradient on rank 1 alone, one with none."""
    ranks = Ranks.of()
    generator = torch.Generator().manual_seed(5 + ranks.rank)
    made = [
        nn.Parameter(torch.zeros(shape, dtype=dtype))
        for shape, dtype in (
            ((3, 4), torch.float64), ((5,), torch.float32), ((2, 2), torch.bfloat16),
            ((7,), torch.float32), ((2,), torch.float64),
        )
    ]  # fmt: skip
    for number, parameter in enumerate(made):
        if number != 4 and (number != 3 or ranks.rank == 1):
            parameter.grad = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            ).to(parameter.dtype)
    own = [None if p.grad is None else p.grad.double().clone() for p in made]
    addresses = [p.grad.data_ptr() for p in made[:3]]
    share = Share(torch.tensor(6.0 + ranks.rank).double(), torch.tensor(0.25 * (1 + ranks.rank)))
    statistics = [torch.zeros(3)]
    reduction = Reduction(lambda: made, ranks, lambda: statistics)
    for _ in range(2):  # a second step sees nothing of the first
        for parameter, grad in zip(made, own, strict=True):
            if grad is None:
                parameter.grad = None
            else:
                parameter.grad.copy_(grad)
        statistics[0].fill_(1.0 + 8 * ranks.rank)
        loss = reduction(share)
    assert torch.allclose(statistics[0], torch.tensor((1.0 + 2 * 9.0) / 3)), "the mean by weight"
    assert [p.grad.data_ptr() for p in made[:3]] == addresses
    found = [None if p.grad is None else p.grad.double() for p in made]
    return [own, found, float(loss)]


def test_a_sum_is_over_all_ranks_for_parameters_of_any_precision():
    (own0, found0, loss0), (own1, found1, loss1) = on_ranks(2, _reduced)
    assert loss0 == loss1 == pytest.approx((6.0 + 7.0) / 0.75)
    for mine, other, left, right, eps in zip(
        own0, own1, found0, found1, [1e-15, 1e-6, 2e-2, 1e-6, 0], strict=True
    ):
        if mine is None and other is None:
            assert left is None
            assert right is None
            continue
        expected = ((0 if mine is None else mine) + other) / 0.75
        assert torch.equal(left, right)
        assert torch.allclose(left, expected, rtol=eps, atol=eps)


def _sparse() -> str:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False") as caught:
        Reduction(table.parameters, Ranks.of())(Share(torch.ones(()), torch.ones(())), 0)
    return str(caught.value)


def test_a_sparse_gradient_is_refused():
    assert all("is sparse" in message for message in on_ranks(2, _sparse))


def _exchanged() -> tuple:
    ranks = Ranks.of()
    rank = ranks.rank
    parts = ranks.gathered(torch.full((rank, 2), float(rank)))
    return (
        [part.tolist() for part in parts],
        ranks.gather_objects({"rank": rank}),
        ranks.largest(rank / 2),
        ranks.any(rank == 2),
        ranks.all(rank < 2),
    )


def test_what_ranks_tell_each_other():
    for found in on_ranks(3, _exchanged):
        assert found == (
            [[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]],
            [{"rank": 0}, {"rank": 1}, {"rank": 2}],
            1.0,
            True,
            False,
        )


def test_alone_there_are_no_ranks():
    assert ranks_for("auto") is None
    with pytest.raises(ValueError, match="'auto', 'off' or a process group"):
        ranks_for("on")


def _budgets() -> tuple[str, int]:
    store, model = store_of(), model_of(sync=True)
    plan = sg.plan_buckets(store, BATCH)
    alone = sg.MemoryBudget("1GiB", device="a small card")
    memory = sg.probe(model, store, loss=squared, reader="fake")
    needs = alone.with_memory(memory).check(memory, plan.capacities).total_bytes
    enough = needs if dist.get_rank() != 1 else needs - 1
    budget = sg.MemoryBudget(enough, device=f"card {dist.get_rank()}").with_memory(memory)
    with pytest.raises(sg.BudgetExceeded) as caught:
        sgd_runner(model, plan, budget=budget)
    return str(caught.value), caught.value.floor_bytes - needs


def test_the_smallest_device_decides_on_every_rank():
    for message, off in on_ranks(2, _budgets):
        assert "rank 1: card 1" in message
        assert off == 0


def test_small_values_go_over_the_subjects_own_device():
    """Without a device of its own, each rank of a group over NCCL alone would take the first."""
    group = dist.ProcessGroup
    device = torch.device("cuda", 2)
    assert Ranks(lambda: group, 1, 2, "nccl", device).host == device
    assert Ranks(lambda: group, 1, 2, "cpu:gloo,cuda:nccl", device).host == torch.device("cpu")


def test_what_a_recording_holds_comes_from_the_device(monkeypatch):
    """As on CUDA, with tensors of the CPU. There, assigning a number (``x[i, j] = 1.0``) makes a
    host tensor and copies it, and every read waits for the device."""

    class Noted(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.append(func.__name__)
            return func(*args, **(kwargs or {}))

    called: list[str] = []
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    group = dist.ProcessGroup
    made = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(2))]
    made[0].grad = torch.ones(3, 4)
    statistics = [torch.ones(4)]
    ranks = Ranks(lambda: group, 1, 2, "cpu:gloo,cuda:nccl")
    reduction = Reduction(lambda: made, ranks, lambda: statistics)
    reduction._asks = False  # as for parameters on CUDA
    share = Share(torch.tensor(6.0), torch.tensor(0.5))
    with Noted():
        loss = reduction(share)
    assert float(loss) == 12.0
    assert reduction.table.tolist() == [[0] * COLUMNS, [6.0, 0.5, -1.0, 0, 0, 0]]
    assert made[0].grad.tolist() == [[2.0] * 4] * 3
    once = len(called)
    statistics += [torch.ones(7) for _ in range(9)]
    reduction(share)
    called.clear()
    with Noted():
        reduction(share)
    assert len(called) <= once, "each running statistic costs launches of its own"
    reads = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"}
    assert not set(called) & {"__setitem__", "tensor", "as_tensor", "from_numpy", *reads}
