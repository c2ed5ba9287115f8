"""Slots: the error names who holds them, and reading a batch whose slot was returned raises."""

from __future__ import annotations

import pytest
import torch

import staticgraph as sg
from staticgraph.errors import StaleBatch

PLAN = [(120, 260, 9)]


def loader(store, **options):
    return sg.StaticLoader(store, PLAN, exact=False, **{"slots": 3, **options})


def test_a_batch_that_is_dropped_frees_its_slot(esol):
    assert sum(batch.real.graphs for batch in loader(esol, slots=2)) == len(esol)


def test_a_released_batch_raises_instead_of_showing_another(esol):
    batches = iter(loader(esol))
    first = next(batches)
    held = first.x.clone()
    again = first.replace(x=first.x + 1)
    first.release()
    first.release()
    for use in (
        lambda: first.x,
        lambda: first["edge_index"],
        lambda: first.tensors(),
        lambda: first.clone(),
        lambda: again.y,
    ):
        with pytest.raises(StaleBatch, match=r"gave its slot back.*batch\.clone"):
            use()
    others = [next(batches).x.clone() for _ in range(3)]
    assert not any(torch.equal(held, other) for other in others)
    with pytest.raises(StaleBatch):
        first.x  # noqa: B018


def test_a_graph_of_autograd_does_not_read_another_batch(esol):
    weight, batches = torch.ones((), requires_grad=True), iter(loader(esol))
    lost, kept = ((weight * batch.edge_attr).sum() for batch in (next(batches), next(batches)))
    kept.backward()
    for _ in range(3):
        next(batches)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lost.backward()


def test_releasing_twice_or_dropping_afterwards_gives_the_slot_back_once(esol):
    source = loader(esol)
    batches = iter(source)
    batch = next(batches)
    free = source._pool.free
    batch.release()
    batch.release()
    del batch
    assert source._pool.free == free + 1


def test_a_batch_with_memory_of_its_own_has_nothing_to_give_back(esol):
    batch = sg.StaticBatch.of(esol, range(3), PLAN[0])
    batch.release()
    assert batch.x.shape[0] == 120
