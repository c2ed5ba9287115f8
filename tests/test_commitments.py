"""A runner under a budget: refused at construction, committed as it runs, measured afterwards."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from support.alike import assert_same_state, sgd, squared
from support.runners import sgd_runner

import staticgraph as sg
from staticgraph import models
from staticgraph.plans.by_memory import sized_plan
from staticgraph.probing.fake_tensors import distinct_bytes

BUCKETS = [(120, 260, 9), (240, 520, 17)]
RECORDED = {"mode": "cuda-graph", "scope": "forward_backward"}


def made(store, budget, memory=None, name="gcn", **options):
    torch.manual_seed(0)
    model = models.build(name, store, hidden=16, layers=1)
    budget = budget if memory is None else budget.with_memory(memory)
    return sgd_runner(model, options.pop("plan", BUCKETS), rate=0.1, budget=budget, **options)


@pytest.fixture(scope="module")
def memory(esol):
    model = models.build("gcn", esol, hidden=16, layers=1)
    optimizer = sgd(model, 0.1)
    return sg.probe(model, esol, loss=squared, optimizer=optimizer)


def breakdown(memory, **options):
    capacities = [sg.Capacity(*bucket) for bucket in BUCKETS]
    return sg.MemoryBudget(1).breakdown(memory, capacities, **options)


@pytest.fixture(scope="module")
def floor(memory):
    return breakdown(memory).total_bytes


@pytest.fixture(scope="module")
def recorded_floor(memory):
    """The floor including the gradients of each bucket's recording."""
    return breakdown(memory, recorded=len(BUCKETS)).total_bytes


def batch_of(store, bucket):
    return sg.StaticBatch.of(store, range(3), BUCKETS[bucket], bucket)


def test_too_small_a_budget_is_refused_before_anything_is_compiled(esol, memory, floor):
    made(esol, sg.MemoryBudget(floor), memory)
    with pytest.raises(sg.BudgetExceeded, match="take batches of at most") as caught:
        made(esol, sg.MemoryBudget(floor - 1), memory)
    assert caught.value.floor_bytes == floor
    assert caught.value.breakdown.total_bytes == floor


def test_what_is_committed_grows_then_stays(esol, memory, floor):
    runner = made(esol, sg.MemoryBudget(floor), memory)
    seen = [runner.stats().bytes_committed]
    for bucket in (0, 0, 1, 0, 1):
        runner.step(batch_of(esol, bucket))
        seen.append(runner.stats().bytes_committed)
    assert 0 < seen[0] < seen[1] == seen[2] < seen[3] == seen[4] == seen[5] == floor
    assert runner.stats().max_bytes == floor
    assert sum(nbytes for _, nbytes in runner.stats().entries) == floor


def test_a_budget_alone_probes_by_itself(esol):
    plan = sg.plan_buckets(esol, 8)
    runner = made(esol, sg.MemoryBudget("1GiB"), plan=plan)
    assert 0 < runner.stats().bytes_committed < 1 << 30
    with pytest.raises(ValueError, match=r"pass budget.with_memory\(probe\(model, store"):
        made(esol, sg.MemoryBudget("1GiB"))


def test_the_report_has_predicted_beside_measured(esol, memory):
    runner = made(esol, sg.MemoryBudget("1GiB"), memory)
    report = runner.report()
    capacities = [sg.Capacity(*bucket) for bucket in BUCKETS]
    assert [b.predicted_bytes for b in report.buckets] == list(map(memory.step_bytes, capacities))
    assert all(b.measured_bytes is None for b in report.buckets), "a CPU records nothing"
    assert "predicted" in str(report)
    assert "predicted" not in str(made(esol, None).report())


class GivenAllocator:
    """An allocator that reports a fixed peak and counts its trims."""

    def __init__(self, peak):
        self._peak, self.trims = peak, 0

    def allocated(self):
        return 1_000

    def reset_peak(self):
        pass

    def peak(self):
        return 1_000 + self._peak

    def trim(self):
        self.trims += 1


def test_what_a_recording_took_is_measured(esol, memory, recorded_floor):
    runner = made(esol, sg.MemoryBudget(recorded_floor), memory, **RECORDED)
    runner.preparation.commitments.allocator = GivenAllocator(peak=777)
    runner.warmup(esol)
    assert [b.measured_bytes for b in runner.report().buckets] == [777, 777]
    assert "777 B" in str(runner.report())
    assert runner.stats().bytes_committed == recorded_floor


def test_a_late_overrun_tears_down_everything_and_leaves_the_process_usable(
    esol, memory, recorded_floor
):
    runner = made(esol, sg.MemoryBudget(recorded_floor), memory, **RECORDED)
    allocator = runner.preparation.commitments.allocator = GivenAllocator(peak=10 * recorded_floor)
    weights = copy.deepcopy(runner.model.state_dict())
    with pytest.raises(sg.BudgetExceeded, match=r"measured, .* predicted.*eager steps still run"):
        runner.warmup(esol)
    assert allocator.trims
    assert runner.stats().bytes_committed == 0
    assert runner.steps.recorded is None
    assert not len(runner.steps.compiled)
    assert_same_state(runner.model, weights)
    again = made(esol, sg.MemoryBudget("1GiB"), memory)
    assert torch.isfinite(again.step(batch_of(esol, 0)))
    with pytest.raises(sg.BudgetExceeded) as caught:
        runner.warmup(esol)
    assert caught.value.floor_bytes > recorded_floor


class TestStepsFromIds:
    """Each bucket's second recording has gradients of its own, which count."""

    def test_they_are_committed_before_anything_is_recorded(self, esol, memory, recorded_floor):
        gradients = 2 * breakdown(memory).lines["gradients"]
        wanted = recorded_floor + gradients
        runner = made(esol, sg.MemoryBudget(wanted), memory, **RECORDED)
        runner.warmup(esol.to("cpu"))
        assert runner.stats().bytes_committed == wanted
        assert dict(runner.stats().entries)["gradients of steps from ids"] > 0
        tight = made(esol, sg.MemoryBudget(wanted - 1), memory, **RECORDED)
        with pytest.raises(sg.BudgetExceeded, match=r"Recording\(one_launch=False\)") as caught:
            tight.warmup(esol.to("cpu"))
        assert caught.value.floor_bytes == wanted
        assert tight.steps.recorded is None
        both = wanted + gradients  # those of recorded forwards come on top
        tight = made(esol, sg.MemoryBudget(both - 1), memory, **RECORDED)
        with pytest.raises(sg.BudgetExceeded, match="gradients of forwards with a back") as caught:
            tight.warmup(esol.to("cpu"), phases=("step", "forward"))
        assert caught.value.floor_bytes == both

    def test_neither_from_the_host_nor_in_two_recordings(self, esol, memory, recorded_floor):
        for options, store in (({}, esol), ({"one_launch": False}, esol.to("cpu"))):
            runner = made(esol, sg.MemoryBudget(recorded_floor), memory, **RECORDED, **options)
            runner.warmup(store)
            assert runner.stats().bytes_committed == recorded_floor

    def test_what_was_taken_holds_a_buckets_own(self, esol, memory, recorded_floor):
        """A bucket's own gradients that a measured peak includes are not counted a second time."""
        own = breakdown(memory).lines["gradients"]
        for over, expected in (
            (0, nullcontext()),
            (1, pytest.raises(sg.BudgetExceeded, match="measured")),
        ):
            runner = made(esol, sg.MemoryBudget(2 * recorded_floor), memory, **RECORDED)
            entries = {n: b for n, b in runner.stats().entries if n != "gradients"}
            taken = 2 * recorded_floor - sum(entries.values()) - own + over
            runner.preparation.commitments.allocator = GivenAllocator(peak=taken)
            with expected:
                runner.warmup(esol.to("cpu"))


class TestGradientsOfEachRecording:
    """Recordings share one pool, and each keeps the gradients that it writes."""

    def held(self, runner) -> int:
        """Bytes of all gradients that recordings keep."""
        recorded = runner.steps.recorded
        made = list(recorded._recordings.values())
        kept = [grad for each in made for grad in each.grads if grad is not None]
        for pair in recorded._pairs.values():
            kept += [grad for grad in pair.gradients if grad is not None]
        return distinct_bytes(kept)

    def told(self, runner) -> int:
        entries = dict(runner.stats().entries)
        return sum(nbytes for name, nbytes in entries.items() if name.startswith("gradients"))

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("phases", [("step",), ("step", "eval", "forward")])
    @pytest.mark.parametrize("on_device", [False, True])
    def test_what_is_committed_is_what_is_kept(self, esol, memory, phases, on_device):
        runner = made(esol, sg.MemoryBudget("1GiB"), memory, **RECORDED)
        store = esol.to("cpu") if on_device else esol
        runner.warmup(store, phases=phases)
        assert self.held(runner) == self.told(runner)
        sets = len(BUCKETS) * (1 + on_device + ("forward" in phases))
        assert self.held(runner) == sets * memory.resident.gradients

    def test_a_cap_without_room_for_them_is_refused_when_the_runner_is_made(
        self, esol, memory, floor, recorded_floor
    ):
        assert recorded_floor - floor == memory.resident.gradients
        made(esol, sg.MemoryBudget(recorded_floor), memory, **RECORDED)
        with pytest.raises(sg.BudgetExceeded, match="gradients of further recordings") as caught:
            made(esol, sg.MemoryBudget(recorded_floor - 1), memory, **RECORDED)
        assert caught.value.floor_bytes == recorded_floor
        for mode in ({"mode": "eager"}, {**RECORDED, "scope": "forward"}):
            made(esol, sg.MemoryBudget(floor), memory, **mode)

    def test_a_plan_of_a_budget_leaves_room_for_them(self, esol, memory):
        def two_buckets(size, margin):
            return sg.BucketPlan.of([(40 * size, 90 * size, size + 1), (60 * size, 130 * size, 30)])

        wanted = two_buckets(9, None).capacities
        floor = sg.MemoryBudget(1).breakdown(memory, wanted, recorded=2).total_bytes
        for spare, size in ((0, 9), (-1, 8)):
            budget = sg.MemoryBudget(floor + spare)
            plan = sized_plan(two_buckets, 1_000, memory, budget, margin=0.0)
            assert plan.capacities == two_buckets(size, None).capacities
            made(esol, budget, memory, plan=plan, **RECORDED)

    def test_forwards_beside_the_plan_have_a_remedy(self, esol, memory, recorded_floor):
        runner = made(esol, sg.MemoryBudget(recorded_floor), memory, **RECORDED)
        with pytest.raises(sg.BudgetExceeded, match="leave 'forward' out of warmup") as caught:
            runner.warmup(esol, phases=("step", "forward"))
        wanted = recorded_floor + len(BUCKETS) * memory.resident.gradients
        assert caught.value.floor_bytes == wanted
        assert runner.steps.recorded is None
