"""The memory budget: a breakdown that adds up, a cap that is kept, remedies that work."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staticgraph.errors import BudgetExceeded
from staticgraph.memory import device
from staticgraph.memory.budget import MemoryBudget, scaled
from staticgraph.memory.fit import Fit
from staticgraph.memory.memory_model import BatchBytes, MemoryModel, ResidentBytes
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.memory_commitments import FROM_IDS, OF_PAIRS, Commitments
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes, parse_bytes

RESIDENT = ResidentBytes(parameters=4_000, buffers=100, gradients=4_000, optimizer=8_000)
BATCH = BatchBytes(2_560, 90, 20, 12)
BUCKETS = [Capacity(512, 1_100, 33, 40), Capacity(2_048, 4_400, 129, 40)]


def model(**changes):
    fit = Fit("linear", ((1_000.0, 4_096.0, 1_792.0, 8.0, 0.0), (0.0, 6_400.0, 1_280.0, 8.0, 0.0)))
    values = {"fit": fit, "resident": RESIDENT, "batch": BATCH, "update_bytes": 9_000}
    return MemoryModel(**{**values, **changes})


capacities = st.builds(
    Capacity.distinct,
    st.integers(60, 50_000),
    st.integers(0, 100_000),
    st.integers(2, 3_000),
    st.integers(1, 59),
)


@given(st.lists(capacities, min_size=1, max_size=4), st.integers(1, 8), st.floats(0, 0.5))
def test_the_breakdown_adds_up(buckets, slots, overhead):
    memory = model(overhead=overhead, workspace_bytes=77)
    found = MemoryBudget(1).breakdown(memory, buckets, slots=slots)
    assert found.total_bytes == sum(found.lines.values())
    worst = max(memory.step_bytes(c) for c in buckets)
    slot = max(BATCH.of(c) for c in buckets)
    expected = 4_000 + 100 + 8_000 + slots * slot + 77 + worst * (1 + overhead)
    assert abs(found.total_bytes - expected) <= 1
    assert found.pinned_host == 2 * slot


def test_the_optimizers_step_is_a_floor():
    tiny, update = Capacity(3, 0, 2), 10**6
    assert model(update_bytes=0).step_bytes(tiny) < update < model().step_bytes(BUCKETS[1])
    assert model(update_bytes=update).step_bytes(tiny) == update
    assert model(update_bytes=update).step_bytes(BUCKETS[1]) == model().step_bytes(BUCKETS[1])


@given(capacities)
@settings(deadline=None)
def test_the_floor_fits_and_one_byte_less_does_not(bucket):
    memory = model()
    floor = MemoryBudget(1).breakdown(memory, [bucket]).total_bytes
    MemoryBudget(floor).check(memory, [bucket])
    with pytest.raises(BudgetExceeded) as caught:
        MemoryBudget(floor - 1).check(memory, [bucket])
    assert caught.value.floor_bytes == floor


def test_the_message_has_breakdown_floor_and_remedies_that_work():
    memory = model()
    floor = MemoryBudget(1).breakdown(memory, BUCKETS).total_bytes
    budget = MemoryBudget(floor // 3)
    with pytest.raises(BudgetExceeded) as caught:
        budget.check(memory, BUCKETS)
    text = str(caught.value)
    for line in ("parameters", "gradients", "optimizer state", "slots", "step (largest bucket)"):
        assert line in text
    assert f"the plan needs {human_bytes(floor)}, the cap is {human_bytes(floor // 3)}" in text
    raised = int(re.search(r"raise the cap to ([\d,]+) bytes", text)[1].replace(",", ""))
    MemoryBudget(raised).check(memory, BUCKETS)
    graphs = int(re.search(r"at most (\d+) graphs", text)[1])
    nodes = int(re.search(r"at most ([\d,]+) nodes", text)[1].replace(",", ""))
    share = nodes / BUCKETS[1].nodes
    assert budget.fits(memory, [scaled(BUCKETS[1], share)])
    assert not budget.fits(memory, [scaled(BUCKETS[1], share * 1.01)])
    assert graphs == scaled(BUCKETS[1], share).graph_limit


def test_a_data_set_on_the_device_is_a_line_of_the_breakdown():
    """It raises the floor by its bytes, and the remedies take it into account."""
    memory, data = model(), 123_456
    floor = MemoryBudget(1).breakdown(memory, BUCKETS).total_bytes + data
    assert MemoryBudget(floor).with_data_set(data).check(memory, BUCKETS).lines["data set"] == data
    tight = MemoryBudget(floor - 1).with_data_set(data)
    with pytest.raises(BudgetExceeded, match=rf"data set +{human_bytes(data)}") as caught:
        tight.check(memory, BUCKETS)
    assert caught.value.floor_bytes == floor
    nodes = int(re.search(r"at most ([\d,]+) nodes", str(caught.value))[1].replace(",", ""))
    assert tight.fits(memory, [scaled(BUCKETS[1], nodes / BUCKETS[1].nodes)])
    assert MemoryBudget(9).with_data_set(3).with_data_set(4).data_set_bytes == 7


def test_where_no_bucket_fits_the_message_says_so():
    with pytest.raises(BudgetExceeded, match="smaller model: even a bucket of one graph"):
        MemoryBudget(10_000).check(model(), BUCKETS)


@pytest.mark.parametrize(
    ("coefficients", "term"),
    [
        ({"nodes": 1e3}, "nodes"),
        ({"edges": 1e4}, "edges"),
        ({"graphs": 1e6}, "graphs"),
        ({"places": 1e5}, "attention"),
        ({"fixed": 1e12}, "fixed"),
    ],
)
def test_what_binds_is_named(coefficients, term):
    assert MemoryModel.of("linear", **coefficients).binding(BUCKETS[1]) == term


def test_a_model_of_memory_survives_json(tmp_path):
    memory = model(note="a note")
    memory.save(tmp_path / "memory.json")
    assert MemoryModel.load(tmp_path / "memory.json") == memory
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json: not a model of memory"):
        MemoryModel.load(tmp_path / "other.json")


def test_coefficients_given_by_hand_are_checked():
    with pytest.raises(ValueError, match="no term 'pairs'"):
        MemoryModel.of("linear", pairs=3)
    with pytest.raises(ValueError, match="negative"):
        MemoryModel.of("linear", nodes=-3)


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20GiB", 20 << 30),
        ("1.5 gb", 1_500_000_000),
        ("4096", 4096),
        (7, 7),
        (" .5 KiB", 512),
        ("512M", 512 << 20),
    ],
)
def test_amounts_are_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "3 parsecs", "-4GB", "0", 0, "1e9"])
def test_amounts_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="amount of memory"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("given_value", "kind", "message"),
    [
        (float("nan"), ValueError, "nan bytes: give a finite number"),
        (float("inf"), ValueError, "inf bytes: give a finite number"),
        ("9" * 400, ValueError, "bytes: give a finite number"),
        (None, TypeError, "None is a NoneType; give an amount of memory"),
        (True, TypeError, "True is a bool; give an amount of memory"),
        ([1], TypeError, r"\[1\] is a list; give an amount of memory"),
    ],
)
def test_what_is_no_amount_at_all_is_named(given_value, kind, message):
    with pytest.raises(kind, match=message):
        parse_bytes(given_value)


@given(st.integers(1, 1 << 50))
def test_what_is_printed_is_what_was_meant(count):
    assert abs(parse_bytes(human_bytes(count)) / count - 1) <= 0.006


# ---------------------------------------------------------------------- the device


def test_the_share_of_a_device_counts_what_torch_holds_once(monkeypatch):
    monkeypatch.setattr(device, "device_memory", lambda device: ("a card", 1000, 500 + 300))
    budget = MemoryBudget.of_device(safety=0.5)
    assert (budget.max_bytes, budget.headroom_bytes, budget.driver_bytes) == (400, 400, 200)
    assert budget.max_bytes + budget.headroom_bytes + budget.driver_bytes == 1000
    assert MemoryBudget.of_device(max_bytes=100).max_bytes == 100
    assert "a card" in str(budget)
    for safety in (0, 1.5):
        with pytest.raises(ValueError, match="safety"):
            MemoryBudget.of_device(safety=safety)


def test_a_cpu_has_memory_too():
    budget = MemoryBudget.of_device("cpu", safety=1.0)
    assert 1 << 20 < budget.max_bytes < 1 << 60


# ---------------------------------------------------------------------- a runner under a budget


@given(
    st.lists(st.sampled_from(["bucket 0", "bucket 1", FROM_IDS, OF_PAIRS]), max_size=12),
    st.integers(0, 6),
    st.floats(0, 0.5),
)
def test_what_is_committed_grows_and_never_passes_the_cap(wanted, sets, overhead):
    """A budget has room for the plan and some sets of gradients; what more would be is refused."""
    memory, plan = model(overhead=overhead), BucketPlan(tuple(BUCKETS))
    floor = MemoryBudget(1).breakdown(memory, BUCKETS, recorded=2).total_bytes
    budget = MemoryBudget(floor + sets * RESIDENT.gradients)
    commitments, before, committed = Commitments(plan, budget, memory, recorded=2), 0, set()
    for name in wanted:
        if name.startswith("bucket"):
            commitments.use(int(name[-1]))
        elif 2 * len(committed | {name}) > sets:
            with pytest.raises(BudgetExceeded, match="the cap is"):
                commitments.more_gradients(name)
        else:
            commitments.more_gradients(name)
            committed.add(name)
        after = commitments.stats.bytes_committed
        assert before <= after <= budget.max_bytes
        before = after
    if "bucket 1" in wanted:  # the largest
        assert before == floor + 2 * len(committed) * RESIDENT.gradients
