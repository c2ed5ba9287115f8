"""Sizing by memory: the plan fits, the next larger one does not, and the limiting term is named."""

from __future__ import annotations

import math

import pytest

import staticgraph as sg
from staticgraph.errors import BudgetExceeded
from staticgraph.memory.budget import MemoryBudget
from staticgraph.memory.memory_model import BatchBytes, MemoryModel, ResidentBytes

RESIDENT = ResidentBytes(10_000, 100, 10_000, 20_000)


def model(**coefficients):
    found = MemoryModel.of("attention", RESIDENT, **coefficients)
    return MemoryModel(found.fit, RESIDENT, BatchBytes(2_560, 90, 20, 12))


MODELS = {
    "nodes": model(fixed=1e4, nodes=5_000, edges=100),
    "edges": model(fixed=1e4, nodes=500, edges=8_000),
    "attention": model(fixed=1e4, nodes=500, edges=100, pairs=400),
    "graphs": model(fixed=1e4, graphs=1e6),
}


@pytest.mark.parametrize("term", MODELS)
@pytest.mark.parametrize("cap", ["3MB", "17MB", "60MB"])
def test_the_plan_fits_and_one_more_graph_does_not(esol, term, cap):
    memory, budget = MODELS[term], MemoryBudget(cap)
    plan = sg.plan_buckets(esol, memory=memory, budget=budget, min_steps_per_epoch=1)
    assert budget.fits(memory, plan.capacities)
    assert plan.batch_size is not None
    if plan.batch_size < len(esol):
        more = sg.plan_buckets(esol, plan.batch_size + 1, margin=plan.margin)
        assert not budget.fits(memory, more.capacities)
        assert "by memory, most of it " in plan.note
        assert sg.MemoryBudget(1).breakdown(memory, plan.capacities).binding == term


def test_steps_an_epoch_are_kept(esol):
    budget = MemoryBudget("100GiB")
    plan = sg.plan_buckets(esol, memory=MODELS["nodes"], budget=budget, min_steps_per_epoch=40)
    assert plan.batch_size == len(esol) // 40
    assert math.ceil(len(esol) / plan.batch_size) >= 40
    assert "by min_steps_per_epoch=40, memory to spare" in plan.note
    with pytest.raises(ValueError, match="min_steps_per_epoch=0"):
        sg.plan_buckets(esol, memory=MODELS["nodes"], budget=budget, min_steps_per_epoch=0)


def test_a_given_batch_size_is_held_to_the_budget(esol):
    memory = MODELS["nodes"]
    plan = sg.plan_buckets(esol, 16, memory=memory, budget=MemoryBudget("1GB"))
    assert plan.capacities == sg.plan_buckets(esol, 16).capacities
    assert "as asked" in plan.note
    with pytest.raises(BudgetExceeded, match="take batches of at most"):
        sg.plan_buckets(esol, 500, memory=memory, budget=MemoryBudget("9MB"))


def test_where_nothing_fits_the_floor_is_told(esol):
    with pytest.raises(BudgetExceeded, match="the floor for this plan") as caught:
        sg.plan_buckets(esol, memory=MODELS["nodes"], budget=MemoryBudget("100kB"))
    floor = MemoryBudget(caught.value.floor_bytes)
    assert sg.plan_buckets(esol, memory=MODELS["nodes"], budget=floor).batch_size == 1


def test_memory_and_budget_go_together(esol):
    with pytest.raises(ValueError, match="go together"):
        sg.plan_buckets(esol, memory=MODELS["nodes"])
    with pytest.raises(ValueError, match="go together"):
        sg.plan_buckets(esol, budget=MemoryBudget("1GB"))
