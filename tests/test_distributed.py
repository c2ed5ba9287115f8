"""Several processes train one model as one process with all their graphs would.

The oracle is one process over the union of the ranks' batches, in eager PyG or in this library
without ranks: loss, gradients, running statistics and parameters must agree to 1e-10 in float64.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.alike import real_ids, same, sgd, squared, update, warned_of
from support.arena import ArenaRecorder
from support.ranked_net import BATCH, GRAPHS, model_of, ranked, runner_of, state_of, store_of
from support.ranks import on_ranks
from support.runners import sgd_runner
from torch import nn
from torch.utils.data import DistributedSampler
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.runner.ways import Auto, Stopwatch

TOLERANCE = 1e-10


def trained_on_rank(missing: bool, buckets: int | None, min_steps: int) -> list[tuple]:
    """Train an epoch on this rank; return each step's graphs, loss and model state."""
    store = store_of(missing)
    plan = sg.plan_buckets(store, None if buckets else BATCH, num_buckets=buckets, graphs=BATCH)
    model = model_of(sync=True, seed=dist.get_rank())  # all ranks train rank 0's
    return _epoch(runner_of(model, plan), store, shuffle=True, seed=3, min_steps=min_steps)


def _epoch(runner, store, **options) -> list[tuple]:
    steps = []
    for batch in runner.loader(store, **options):
        ids = real_ids(batch)
        steps.append((ids, float(runner.step(batch)), state_of(runner.model)))
    return steps


def _near(state: dict, expected: dict) -> None:
    """Asserts that a model's state is another's but for the counts of batches."""
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        if "num_batches" not in name:
            assert torch.allclose(state[name], value, rtol=0, atol=TOLERANCE), name


@pytest.mark.parametrize(
    ("world_size", "missing", "buckets", "min_steps"),
    [
        pytest.param(2, False, None, 0, id="two"),
        pytest.param(4, False, None, 0, id="four", marks=pytest.mark.slow),
        pytest.param(2, False, 3, 0, id="several buckets"),
        pytest.param(2, True, None, 0, id="missing labels"),
        pytest.param(3, False, None, 9, id="padding alone"),
    ],
)
def test_ranks_are_one_process_of_all_their_batches(world_size, missing, buckets, min_steps):
    """Of several buckets, all ranks take the same one at each step, and ranks with no batch left in
    it take a batch of padding, which moves nothing; missing labels weigh nothing."""
    ranks = on_ranks(world_size, trained_on_rank, missing, buckets, min_steps)
    store = store_of(missing)
    model = model_of(sync=False)
    optimizer = sgd(model, 0.05)
    seen: list[int] = []
    for step in zip(*ranks, strict=True):
        ids = [i for graphs, _, _ in step for i in graphs]
        seen += ids
        assert len({loss for _, loss, _ in step}) == 1
        expected, states = _plain_step(model, optimizer, store, ids)
        for _, loss, state in step:
            assert loss == pytest.approx(expected, abs=TOLERANCE)
            _near(state, states)
            assert same(state, step[0][2])
    assert sorted(seen) == list(range(GRAPHS))


def _plain_step(model, optimizer, store, ids) -> tuple[float, dict]:
    """One PyG step of a single process over all graphs together, unpadded."""
    if not ids:
        return 0.0, _after_nothing(model, optimizer)
    data = Batch.from_data_list(store[ids])
    out = model(data.x, data.edge_index, data.edge_attr, data.batch)
    known = ~data.y.isnan()
    loss = F.mse_loss(out[known], data.y[known])
    update(optimizer, loss)
    return float(loss.detach()), state_of(model)


def _after_nothing(model, optimizer) -> dict:
    """The state after a step of padding alone: gradients are zero and nothing moves."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    optimizer.step()
    return state_of(model)


def _padded_on_rank(mode: str) -> list[tuple]:
    """Trains on batches of this rank's own loader, in the smallest buckets that take them; the run
    over other sizes than those of the first bucket has 18 nodes, which the second has as graphs."""
    padder = sg.Padder([sg.Capacity(60, 80, 10), sg.Capacity(300, 400, 18)])
    runner = runner_of(model_of(sync=True), padder, mode)
    sampler = DistributedSampler(range(60), shuffle=False)
    sizes = [3, 15, 12] if dist.get_rank() else [15, 3, 12]
    ids, found = iter(list(sampler)), []
    for size in sizes:
        graphs = [next(ids) for _ in range(size)]
        batch = padder([store_of()[i] for i in graphs])
        found.append((batch.bucket, graphs, float(runner.step(batch)), state_of(runner.model)))
    return found


@pytest.mark.parametrize("mode", ["eager", pytest.param("fused", marks=pytest.mark.slow)])
def test_ranks_in_different_buckets_are_one_process(mode):
    """A loader of one's own per rank; the last step is of one bucket on both."""
    model = model_of(sync=False)
    optimizer = sgd(model, 0.05)
    steps = list(zip(*on_ranks(2, _padded_on_rank, mode), strict=True))
    assert [[bucket for bucket, *_ in step] for step in steps] == [[1, 0], [0, 1], [1, 1]]
    for (_, first, loss, state), (_, second, other, others) in steps:
        expected, states = _plain_step(model, optimizer, store_of(), [*first, *second])
        assert loss == other == pytest.approx(expected, abs=TOLERANCE)
        _near(state, states)
        assert same(state, others)


def _without_one_label() -> sg.GraphStore:
    graphs = store_of()[: 4 * BATCH]
    graphs[3].y[0, 0] = torch.nan
    return sg.GraphStore.from_pyg(graphs)


def _first_step_without_one_label() -> tuple[list[int], float]:
    store, model = _without_one_label(), model_of(sync=True)
    runner = runner_of(model, sg.plan_buckets(store, BATCH))
    batch = next(iter(runner.loader(store)))
    return real_ids(batch), float(runner.step(batch))


def test_ranks_check_padding_alike_where_one_has_all_labels():
    """Norms sum over ranks in each forward, so a check on one rank alone would see other sums."""
    (first, loss), (second, other) = on_ranks(2, _first_step_without_one_label)
    assert (3 in first) != (3 in second)
    model = model_of(sync=False)
    optimizer = sgd(model, 0.05)
    expected, _ = _plain_step(model, optimizer, _without_one_label(), first + second)
    assert loss == other == pytest.approx(expected, abs=TOLERANCE)


def _trained_both_ways(scope: str) -> tuple[list, list, dict]:
    """Train an epoch on this rank in eager and recorded, with norms over this rank's rows alone."""
    runs = []
    for mode in ("eager", "cuda-graph"):
        store, runner = ranked(sync=False, mode=mode, scope=scope)
        runner.warmup(store)
        steps = [float(runner.step(batch)) for batch in runner.loader(store, shuffle=True)]
        runs.append((steps, state_of(runner.model)))
        replays = sum(runner.report().replays.values())
    (eager, _), (recorded, state) = runs
    torch.testing.assert_close(state, runs[0][1], rtol=0, atol=TOLERANCE)
    return eager, recorded, {**state, "replays": replays}


@pytest.mark.parametrize("scope", ["step", "forward_backward"])
def test_a_recorded_step_is_averaged_beside_its_recording(scope):
    """In either scope: gloo adds on the host. The norms' running statistics become one mean too."""
    ranks = on_ranks(2, _trained_both_ways, scope)
    for eager, recorded, state in ranks:
        assert recorded == pytest.approx(eager, abs=TOLERANCE)
        assert state["replays"] == len(recorded) > 5
        for name, value in ranks[0][2].items():
            same = torch.equal(state[name], value) if name != "replays" else True
            assert same or "num_batches" in name, name


class Latent(nn.Module):
    """Targets of graphs, and a term of nodes that the loss adds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 3).double()
        self.head = nn.Linear(3, 2).double()

    def forward(self, x, batch, num_graphs):
        h = self.lin(x)
        return self.head(global_add_pool(h, batch, num_graphs)), h


def _added(kind: str, model: Latent, h: torch.Tensor, batch=None) -> torch.Tensor:
    """A penalty, or a term of rows: as rows, or as this rank's own mean."""
    if kind == "penalty":
        return 0.1 * model.lin.weight.abs().sum()
    rows = 0.5 * (h.square() - 1).sum(-1)
    return sg.masked_mean(rows, batch) if kind == "mean" else rows


def _with_added(kind: str, mode: str) -> tuple[list, list[str]]:
    store, model = store_of(True), Latent()

    def loss(out, batch):
        return squared(out[0], batch), None, _added(kind, model, out[1], batch)

    plan = sg.plan_buckets(store, BATCH)
    runner = sgd_runner(model, plan, mode, loss, rate=0.05, check_padding=False)
    with warned_of("adds a scalar") as told:
        steps = _epoch(runner, store, shuffle=True)
    return steps, told


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("rows", "eager"), ("penalty", "eager"), ("penalty", "cuda-graph"),
        pytest.param("rows", "default", marks=pytest.mark.slow),
        pytest.param("penalty", "fused", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_the_loss_adds_is_added_once_over_all_ranks(kind, mode):
    """Of rows, the mean is over the rows of all ranks, whatever their labels."""
    store, model = store_of(True), Latent()
    optimizer = sgd(model, 0.05)
    ranks = on_ranks(3, _with_added, kind, mode)
    for step in zip(*(steps for steps, _ in ranks), strict=True):
        data = Batch.from_data_list([store[i] for ids, _, _ in step for i in ids])
        out, h = model(data.x, data.batch, data.num_graphs)
        known = ~data.y.isnan()
        expected = F.mse_loss(out[known], data.y[known]) + _added(kind, model, h).mean()
        update(optimizer, expected)
        for _, loss, state in step:
            assert loss == pytest.approx(expected.item(), abs=TOLERANCE)
            torch.testing.assert_close(state, state_of(model), rtol=0, atol=TOLERANCE)
    assert [warned for _, warned in ranks] == [[], [], []]


def test_a_mean_of_each_ranks_own_rows_is_warned_of():
    for _, warned in on_ranks(2, _with_added, "mean", "eager"):
        assert len(warned) == 1
        assert "Return the rows in its place" in warned[0]


def _with_norms_over_ranks() -> None:
    store, runner = ranked(mode="cuda-graph")
    runner.warmup(store)


def _refused(train, *options) -> str:
    with pytest.raises(sg.NotStatic) as caught:
        train(*options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((_with_norms_over_ranks,), r"^conv\.nn\.1 is a SyncBatchNorm[\s\S]*mode='default'"),
        ((_with_added, "rows", "cuda-graph"), "the loss adds the mean of rows"),
    ],
    ids=["norms", "rows"],
)
def test_what_sums_over_ranks_is_not_recorded_over_gloo(given, words):
    """The tape would replay a norm's sum without waiting for it, and be off by a fifth."""
    for message in on_ranks(2, _refused, *given):
        assert re.search(words, message), message


class _Favourite(Stopwatch):
    """A stopwatch that finds another way faster on each rank."""

    def now(self) -> float:
        return 0.0

    def milliseconds(self, way, step) -> float:
        step()
        return {"eager": 2.0, "cuda-graph": 1.0 if dist.get_rank() == 0 else 3.0}[way]


def _chosen(file: str) -> list:
    ways = Auto(ways=("eager", "cuda-graph"), on_cpu=True, stopwatch=_Favourite)
    store, runner = ranked(sync=False, mode=ways, recorder=ArenaRecorder)
    # Only rank 0 has the file; choices that not all ranks have are measured on all.
    runner.warmup(store, choices=file if dist.get_rank() == 0 else None)
    losses = [float(runner.step(batch)) for batch in runner.loader(store)]
    report = runner.report()
    return [[(c.way, c.contenders[1].median_ms) for c in report.choices], losses, report.fallbacks]


def test_ranks_choose_alike_by_the_slowest(tmp_path):
    """Ranks would wait forever if one stepped in another way than the rest, or tried one fewer."""
    first, second = on_ranks(2, _chosen, str(tmp_path / "choices.json"))
    again = on_ranks(2, _chosen, str(tmp_path / "choices.json"))[1]
    assert first[0] == second[0] == again[0]
    assert {way for way, _ in first[0]} == {"eager"}
    assert {ms for _, ms in first[0]} == {3.0}
    assert first[1] == second[1] == again[1]
