"""A probe reads one step where that tells as much as several, and leaves the model, its optimizer
and the random state as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import same
from support.probed_tasks import POINTS, probed, task_of

from staticgraph.probing.allocator import AllocatorReader, ProfilerAllocator
from staticgraph.probing.fake_tensors import FakeTensorReader

# ---------------------------------------------------------------------- read once, or warm


def leaving(kept):
    """A forward that counts its calls and may keep its results: the last one, all, or none."""
    calls = []

    def forward(model, batch):
        out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.num_graphs)
        calls.append(out.shape)
        if kept == "the last":
            calls[:] = [*(c for c in calls if not torch.is_tensor(c)), out.detach()]
        elif kept == "all":
            calls.append(out.detach())
        return out

    return forward, lambda: sum(not torch.is_tensor(call) for call in calls)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kept", "steps"), [("none", (2, 3, 4)), ("the last", (2, 4, 6)), ("all", (2, 3, 4))]
)
def test_a_step_is_read_once_where_that_tells_the_same(esol, kept, steps):
    """The first capacity is read after a warm-up step and the others with one step, unless the two
    steps differed, since one finds what the other left; the bytes equal those of a reader that
    warms up at every capacity."""
    forward, count = leaving(kept)
    task = task_of(esol, forward=forward)
    once, counts, warm = [], [], []
    with FakeTensorReader().open(task) as read:
        for capacity in POINTS[:3]:
            once.append(read(capacity))
            counts.append(count())
    assert tuple(counts) == steps
    for capacity in POINTS[:3]:
        with FakeTensorReader().open(task) as read:
            warm.append(read(capacity))
    for one, other in zip(once, warm, strict=True):
        assert one == other


# ---------------------------------------------------------------------- what is left behind


def snapshot(task):
    model, optimizer = task.subject.model, task.subject.optimizer
    return {
        "state": copy.deepcopy(model.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "identity": [id(p) for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "flags": [m.training for m in model.modules()],
        "classes": [type(m) for m in model.modules()],
        "random": torch.get_rng_state(),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reader", ["fake", AllocatorReader(ProfilerAllocator())])
@pytest.mark.parametrize("trained", [False, True])
def test_a_probe_changes_nothing(esol, reader, trained):
    task = task_of(esol)
    if trained:  # state, gradients and running statistics to lose
        graphs = esol[:6]
        from torch_geometric.data import Batch

        batch = Batch.from_data_list(graphs)
        out = task.subject.model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, 6)
        out.square().sum().backward()
        task.subject.optimizer.step()
        task.subject.model.eval()
    before = snapshot(task)
    probed(task, esol, reader=reader, capacities=POINTS[:6], held_out=None)
    assert same(snapshot(task), before)


def test_a_scheduler_is_not_stepped(esol):
    """Schedulers wrap ``step``; the twin must not reach the real optimizer through the wrapper."""
    task = task_of(esol)
    torch.optim.lr_scheduler.StepLR(task.subject.optimizer, 10)
    before = snapshot(task)
    probed(task, esol)
    assert same(snapshot(task), before)
