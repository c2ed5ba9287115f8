"""Several processes train one model as one process with all their graphs would.

The oracle is one process over the union of the ranks' batches, in eager PyG or in this library
without ranks: loss, gradients, running statistics and parameters must agree to 1e-10 in float64.
"""

from __future__ import annotations

import functools
import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.ranks import RankFailed, on_ranks
from support.tape import TapeRecorder
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv, global_add_pool

import staticgraph as sg
from staticgraph.distributed.ranks import Ranks, ranks_for
from staticgraph.distributed.reduction import Reduction
from staticgraph.distributed.share import Share
from staticgraph.runner.auto import Stopwatch

GRAPHS, BATCH = 150, 8  # of 4 ranks: steps of 32, and a ragged last one
TOLERANCE = 1e-10


class Net(nn.Module):
    """GINE with BatchNorm over nodes, and one over graphs."""

    def __init__(self, width: int = 6, targets: int = 2) -> None:
        super().__init__()
        self.bonds = nn.Linear(2, 4)
        self.conv = GINEConv(nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh()))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, targets)
        self.unused = nn.Linear(3, 3)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.conv(x, edge_index, self.bonds(edge_attr))
        return self.head(self.norm(global_add_pool(h, batch)))


@functools.cache
def store_of(missing: bool = False) -> sg.GraphStore:
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(GRAPHS):
        nodes, edges = int(rng.integers(1, 12)), int(rng.integers(0, 20))
        y = rng.normal(size=(1, 2))
        if missing:
            y[rng.random((1, 2)) < 0.4] = np.nan
        graphs.append(
            Data(
                x=torch.from_numpy(rng.normal(size=(nodes, 4))),
                edge_index=torch.from_numpy(rng.integers(0, nodes, (2, edges))),
                edge_attr=torch.from_numpy(rng.normal(size=(edges, 2))),
                y=torch.from_numpy(y),
            )
        )
    return sg.GraphStore.from_pyg(graphs, name="random")


def squared(out, batch):
    return F.mse_loss(out, batch.y, reduction="none")


def model_of(sync: bool, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = Net().double()
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if sync else model


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **{name: value.detach().clone() for name, value in model.state_dict().items()},
        **{f"{n}.grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
    }


def trained_on_rank(missing: bool, options: dict) -> list[tuple]:
    """An epoch on this rank: of each step the graphs, the loss and the model's state."""
    store = store_of(missing)
    buckets = options.get("buckets")
    plan = sg.plan_buckets(store, None if buckets else BATCH, num_buckets=buckets, graphs=BATCH)
    model = model_of(sync=True, seed=dist.get_rank())  # rank 0's is what all train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    runner = sg.StaticGraphRunner(
        model, plan, options.get("mode", "eager"), loss=squared, optimizer=optimizer,
        recording=sg.Recording(recorder=TapeRecorder, scope=options.get("scope", "step")),
    )  # fmt: skip
    loader = runner.loader(store, shuffle=True, seed=3, min_steps=options.get("min_steps", 0))
    if options.get("mode"):
        runner.warmup(store, progress=False)
    found = []
    for batch in loader:
        ids = batch.graph_ids[batch.graph_mask].tolist()
        found.append((ids, float(runner.step(batch)), state_of(model)))
    return found


def check_equal(world_size: int, missing: bool = False, **options) -> None:
    ranks = on_ranks(world_size, trained_on_rank, missing, options)
    store = store_of(missing)
    model = model_of(sync=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen: list[int] = []
    for step in zip(*ranks, strict=True):
        ids = [i for graphs, _, _ in step for i in graphs]
        seen += ids
        assert len({loss for _, loss, _ in step}) == 1
        expected, states = _plain_step(model, optimizer, store, ids)
        for _, loss, state in step:
            assert loss == pytest.approx(expected, abs=TOLERANCE)
            assert state.keys() == states.keys()
            for name, value in states.items():
                if "num_batches" not in name:
                    assert torch.allclose(state[name], value, rtol=0, atol=TOLERANCE), name
                assert torch.equal(state[name], step[0][2][name]), name
    assert sorted(seen) == list(range(GRAPHS))


def _plain_step(model, optimizer, store, ids) -> tuple[float, dict]:
    """One step of one process over all graphs together, unpadded, in PyG."""
    from torch_geometric.data import Batch

    if not ids:
        return 0.0, _after_nothing(model, optimizer)
    data = Batch.from_data_list([store[i] for i in ids])
    optimizer.zero_grad()
    out = model(data.x, data.edge_index, data.edge_attr, data.batch)
    known = ~data.y.isnan()
    loss = F.mse_loss(out[known], data.y[known])
    loss.backward()
    optimizer.step()
    return float(loss.detach()), state_of(model)


def _after_nothing(model, optimizer) -> dict:
    """A step of padding alone: gradients are zero and nothing moves."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    optimizer.step()
    return state_of(model)


def test_two_ranks_are_one_process_of_twice_the_batch():
    check_equal(2)


@pytest.mark.slow
def test_four_ranks_are_one_process_of_four_times_the_batch():
    check_equal(4)


def test_batches_of_several_buckets_are_averaged_alike():
    """Packs of a varying number of graphs: at each step all ranks take the same bucket, and ranks
    that have none left of it a batch of padding."""
    check_equal(2, buckets=3)


def test_ranks_with_missing_labels_weigh_what_is_labelled():
    check_equal(2, missing=True)


def _trained_both_ways(scope: str) -> tuple[list, list, dict]:
    """Two runs of an epoch on this rank, in eager and recorded, with norms of one rank alone."""
    runs = []
    for mode in ("eager", "cuda-graph"):
        store, model = store_of(), model_of(sync=False)
        runner = sg.StaticGraphRunner(
            model, sg.plan_buckets(store, BATCH), mode, loss=squared,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            recording=sg.Recording(recorder=TapeRecorder, scope=scope),
        )  # fmt: skip
        runner.warmup(store, progress=False)
        steps = [float(runner.step(batch)) for batch in runner.loader(store, shuffle=True)]
        runs.append((steps, state_of(model)))
        replays = sum(runner.report().replays.values())
    (eager, _), (recorded, state) = runs
    for name, value in runs[0][1].items():
        assert torch.allclose(state[name], value, rtol=0, atol=TOLERANCE), name
    return eager, recorded, {**state, "replays": replays}


@pytest.mark.parametrize("scope", ["step", "forward_backward"])
def test_a_recorded_step_is_averaged_beside_its_recording(scope):
    """Whatever its scope: gloo adds on the host. Norms' running statistics are one mean, too."""
    ranks = on_ranks(2, _trained_both_ways, scope)
    for eager, recorded, state in ranks:
        assert recorded == pytest.approx(eager, abs=TOLERANCE)
        assert state["replays"] == len(recorded) > 5
        for name, value in ranks[0][2].items():
            same = torch.equal(state[name], value) if name != "replays" else True
            assert same or "num_batches" in name, name


def _recorded_with_sync() -> str:
    store, model = store_of(), model_of(sync=True)
    runner = sg.StaticGraphRunner(
        model, sg.plan_buckets(store, BATCH), "cuda-graph", loss=squared,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        recording=sg.Recording(recorder=TapeRecorder),
    )  # fmt: skip
    with pytest.raises(sg.NotStatic) as caught:
        runner.warmup(store, progress=False)
    return str(caught.value)


def test_a_norm_over_ranks_is_not_recorded_over_gloo():
    """The tape would replay its sum without waiting for it, and be wrong by a fifth."""
    for message in on_ranks(2, _recorded_with_sync):
        assert message.startswith("conv.nn.1 is a SyncBatchNorm")
        assert "mode='default'" in message


def test_steps_of_padding_alone_move_nothing():
    check_equal(3, min_steps=9)


class _Favourite(Stopwatch):
    """Finds another way faster on each rank, and the limit spent on the last."""

    def now(self) -> float:
        return 0.0

    def milliseconds(self, way, step) -> float:
        step()
        return {"eager": 2.0, "cuda-graph": 1.0 if dist.get_rank() == 0 else 3.0}[way]


def _chosen(file: str) -> list:
    store, model = store_of(), model_of(sync=False)
    runner = sg.StaticGraphRunner(
        model, sg.plan_buckets(store, BATCH),
        sg.Auto(ways=("eager", "cuda-graph"), on_cpu=True, stopwatch=_Favourite), loss=squared,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        recording=sg.Recording(recorder=TapeRecorder),
    )  # fmt: skip
    # Only rank 0 has the folder: what is not on all ranks is measured on all.
    runner.warmup(store, progress=False, choices=file if dist.get_rank() == 0 else None)
    losses = [float(runner.step(batch)) for batch in runner.loader(store)]
    report = runner.report()
    return [[(c.way, c.contenders[1].median_ms) for c in report.choices], losses, report.fallbacks]


def test_ranks_choose_alike_by_the_slowest(tmp_path):
    """A rank that steps in another way than the rest, or tries one fewer, would wait for ever."""
    first, second = on_ranks(2, _chosen, str(tmp_path / "choices.json"))
    again = on_ranks(2, _chosen, str(tmp_path / "choices.json"))[1]
    assert first[0] == second[0] == again[0]
    assert {way for way, _ in first[0]} == {"eager"}
    assert {ms for _, ms in first[0]} == {3.0}
    assert first[1] == second[1] == again[1]


# ---------------------------------------------------------------- what ranks must have alike


def _refused(case: str) -> str:
    """The error of this rank, which must be one on every rank."""
    rank, store = dist.get_rank(), store_of()
    model, batch_size = model_of(sync=False), BATCH
    if case == "plan" and rank == 1:
        batch_size += 1
    if case == "model" and rank == 1:
        model.head = nn.Linear(6, 3).double()
    if case == "wrapped":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if case == "inside":
        model.conv.nn = nn.parallel.DistributedDataParallel(model.conv.nn)
    with pytest.raises(ValueError) as caught:
        sg.StaticGraphRunner(
            model, sg.plan_buckets(store, batch_size), "eager", loss=squared,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        )  # fmt: skip
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("plan", "the plan of rank 1 differs from rank 0's"),
        ("model", "the model of rank 1 differs from rank 0's"),
        ("wrapped", "the model is wrapped in DistributedDataParallel"),
        ("inside", "'conv.nn' of the model is wrapped in DistributedDataParallel"),
    ],
)
def test_every_rank_says_what_is_not_alike(case, said):
    for message in on_ranks(2, _refused, case):
        assert said in message


def _one_bad_graph() -> str:
    """The loss is infinite on rank 1 alone."""
    store, model = store_of(), model_of(sync=True)
    runner = sg.StaticGraphRunner(
        sg.Subject(
            model,
            loss=lambda out, batch: squared(out, batch) / (dist.get_rank() == 0),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            check_padding=False,
        ),
        sg.plan_buckets(store, BATCH),
        "eager",
    )
    before = state_of(model)
    with pytest.raises(sg.NonFiniteLoss) as caught:
        runner.step(next(iter(runner.loader(store))))
    after = state_of(model)
    assert all(torch.equal(after[n], v) for n, v in before.items() if n.endswith("weight"))
    return str(caught.value)


def test_a_loss_that_is_not_finite_ends_the_step_on_every_rank():
    first, second = on_ranks(2, _one_bad_graph)
    assert "the message of rank 1 names the graphs" in first
    assert "the loss of the batch of graphs" in second


def _same_graphs(rank_given: bool) -> list[str]:
    store, model = store_of(), model_of(sync=True)
    plan = sg.plan_buckets(store, BATCH)
    runner = sg.StaticGraphRunner(
        model, plan, "eager", loss=squared, optimizer=torch.optim.SGD(model.parameters(), lr=0.05)
    )
    own = {"rank": dist.get_rank(), "world_size": 2} if rank_given else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in sg.StaticLoader(store, plan, **own):
            runner.step(batch)
    return [str(w.message) for w in caught if "trains on the same graphs" in str(w.message)]


def test_ranks_with_the_same_graphs_are_warned_of():
    for found in on_ranks(2, _same_graphs, False):
        assert len(found) == 1
        assert "all 2 ranks took a batch that begins with graph 0" in found[0]
    assert on_ranks(2, _same_graphs, True) == [[], []]


def _buckets_apart() -> str:
    store, model = store_of(), model_of(sync=True)
    plan = [sg.Capacity(200, 300, 20), sg.Capacity(300, 400, 20)]
    runner = sg.StaticGraphRunner(
        model, plan, "eager", loss=squared, optimizer=torch.optim.SGD(model.parameters(), lr=0.05)
    )
    rank = dist.get_rank()
    with pytest.raises(RuntimeError) as caught:
        runner.step(sg.StaticBatch.of(store, range(5), runner.plan.capacities[rank], rank))
    return str(caught.value)


def test_ranks_in_different_buckets_are_an_error():
    for message in on_ranks(2, _buckets_apart):
        assert "different buckets (rank 0: 0, rank 1: 1)" in message


def _destroyed() -> tuple[bool, str]:
    store, model = store_of(), model_of(sync=True)
    plan = [sg.Capacity(200, 300, 20)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    runner = sg.StaticGraphRunner(model, plan, "eager", loss=squared, optimizer=optimizer)
    ranks = Ranks.of()
    batch = sg.StaticBatch.of(store, range(5), plan[0])
    runner.step(batch)
    group = weakref.ref(ranks.group)
    gc.disable()  # whatever stands in a circle stands there until the interpreter ends
    dist.destroy_process_group()
    gone = group() is None
    with pytest.raises(RuntimeError, match="process group of this job was destroyed") as caught:
        ranks.wait()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return gone, str(caught.value)


def test_a_group_that_is_destroyed_is_held_by_nothing():
    """A runner that held it would keep gloo's threads alive until the interpreter ends, where they
    now and then abort it."""
    for gone, said in on_ranks(2, _destroyed):
        assert gone
        assert "before dist.destroy_process_group()" in said


# ---------------------------------------------------------------- sums of gradients


def _reduced(buffer_bytes: int) -> list:
    """Three parameters of three dtypes; one has a gradient on rank 1 alone, one on no rank."""
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
    reduction = Reduction(made, ranks, buffer_bytes=buffer_bytes)
    for _ in range(2):  # a second step finds nothing of the first
        for parameter, grad in zip(made, own, strict=True):
            if grad is None:
                parameter.grad = None
            else:
                parameter.grad.copy_(grad)
        loss = reduction(share, bucket=0)
    assert [p.grad.data_ptr() for p in made[:3]] == addresses
    found = [None if p.grad is None else p.grad.double() for p in made]
    return [own, found, float(loss), reduction.nbytes]


@pytest.mark.parametrize("buffer_bytes", [1, 40, 1 << 20])
def test_a_sum_is_over_all_ranks_whatever_their_buffers(buffer_bytes):
    (own0, found0, loss0, nbytes), (own1, found1, loss1, _) = on_ranks(2, _reduced, buffer_bytes)
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
    values = 8 * (12 + 2) + 4 * (5 + 4 + 7)
    assert nbytes == values + 8 * (2 * 4 + 5)  # and a row a rank, and a flag a parameter


def _sparse() -> str:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False") as caught:
        Reduction(table.parameters(), Ranks.of())(Share(torch.ones(()), torch.ones(())), 0)
    return str(caught.value)


def test_a_sparse_gradient_is_refused():
    assert all("is sparse" in message for message in on_ranks(2, _sparse))


def _exchanged() -> tuple:
    ranks = Ranks.of()
    rank = ranks.rank
    parts = ranks.gathered(torch.full((rank, 2), float(rank)))
    return (
        [part.tolist() for part in parts],
        ranks.told({"rank": rank}),
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
    with pytest.raises(sg.BudgetExceeded) as caught:
        sg.StaticGraphRunner(
            model, plan, "eager", loss=squared,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            budget=sg.MemoryBudget(enough, device=f"card {dist.get_rank()}").with_memory(memory),
        )  # fmt: skip
    return str(caught.value), caught.value.floor_bytes - needs


def test_the_smallest_device_decides_on_every_rank():
    for message, off in on_ranks(2, _budgets):
        assert "rank 1: card 1" in message
        assert off == 0


def test_a_rank_that_fails_is_seen():
    with pytest.raises(RankFailed, match="rank 1 of these"):
        on_ranks(2, _fails)


def _fails() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 of these")
