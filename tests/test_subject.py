"""The constructor: a model or a subject, the arguments with it, and each of them given only
once."""

import copy

import pytest
import torch
from support.alike import real_ids, sgd, squared, update
from support.arena import ArenaRecorder
from support.runners import made_runner, sgd_runner
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.runner.ways import Auto
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.recordable_optimizer import check_recordable, make_recordable

CAPACITIES = [(600, 1300, 31)]
IDS = range(20)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(9, 1)

    def forward(self, x, batch, batch_size):
        return global_add_pool(self.lin(x.float()), batch, batch_size)


def batch_of(store):
    return sg.StaticBatch.of(store, IDS, CAPACITIES[0])


@pytest.mark.parametrize("option", ["loss", "optimizer", "forward", "autocast"])
def test_what_a_subject_says_is_not_said_again(option):
    model = Net()
    given = {
        "loss": squared,
        "optimizer": sgd(model, 1e-4),
        "forward": lambda model, batch: model(batch.x, batch.batch, batch.num_graphs),
        "autocast": torch.bfloat16,
    }
    with pytest.raises(TypeError, match=f"{option}= next to a Subject") as caught:
        sg.StaticGraphRunner(Subject(model), CAPACITIES, **{option: given[option]})
    assert f"Subject(model, {option}=...)" in str(caught.value)


def test_probe_and_preflight_take_a_subject_too(esol):
    model = Net()
    model.call = lambda data: model(data.x, data.batch, data.num_graphs)
    forward = lambda model, batch: model(batch.x, batch.batch, batch.num_graphs)  # noqa: E731
    subject = Subject(Net(), squared, forward=forward)
    parts = sg.probe(subject.model, esol, loss=squared, forward=forward)
    assert sg.probe(subject, esol) == parts
    with pytest.raises(TypeError, match="loss= next to a Subject"):
        sg.probe(subject, esol, loss=squared)
    assert sg.check(subject, CAPACITIES, esol).ok


def test_a_subject_is_checked_once_where_it_is_made():
    with pytest.raises(TypeError, match=r"the model is a function, not a torch\.nn\.Module"):
        Subject(lambda x: x)
    with pytest.raises(TypeError, match=r"loss=MSELoss\(\) takes a target.*reduction='none'"):
        Subject(Net(), nn.MSELoss())
    with pytest.raises(TypeError, match="LBFGS calls the model several times a step"):
        Subject(Net(), optimizer=torch.optim.LBFGS(Net().parameters()))
    with pytest.raises(TypeError, match="padding names row 0"):
        Subject(Net(), optimizer=torch.optim.SparseAdam(Net().parameters()))
    with pytest.raises(TypeError, match="give the runner the model itself"):
        sg.StaticGraphRunner(torch.compile(Net(), backend="eager"), CAPACITIES)  # pyright: ignore
    with pytest.raises(TypeError, match=r"such as \('pos',\)"):
        Subject(Net(), differentiable="pos")
    with pytest.raises(ValueError, match="check_finite=-1"):
        Subject(Net(), check_finite=-1)
    with pytest.raises(
        ValueError, match="scope='all'; choose one of forward, forward_backward, step"
    ):
        sg.Recording(scope="all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="on_miss='skip'; choose 'error' or 'eager'"):
        sg.Recording(on_miss="skip")  # pyright: ignore[reportArgumentType]


# ---------------------------------------------------------------------- modes and recordings


def test_auto_is_a_mode_and_the_word_means_its_default():
    for mode in ("auto", Auto()):
        runner = sg.StaticGraphRunner(Net(), CAPACITIES, mode)
        assert runner.steps.execution.auto.ways == ("eager", "fused"), (
            "on a CPU nothing is compiled unasked"
        )
        assert runner.mode.name == "eager"
    runner = sg.StaticGraphRunner(Net(), CAPACITIES, Auto(on_cpu=True, rounds=7))
    assert runner.steps.execution.auto == Auto(
        on_cpu=True, rounds=7, ways=("eager", "fused", "default")
    )
    able = sg.Recording(recorder=ArenaRecorder)
    runner = sg.StaticGraphRunner(Net(), CAPACITIES, Auto(on_cpu=True), recording=able)
    assert runner.steps.execution.auto.ways == ("eager", "fused", "default", "cuda-graph")


# ---------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_without_a_state_is_made_ready_for_its_recording(esol, kind):
    """As users write it; the recorded steps equal those of plain eager."""
    results = []
    for mode in ("eager", "cuda-graph"):
        torch.manual_seed(0)
        model = Net()
        optimizer = kind(model.parameters(), lr=torch.tensor(1e-3))
        if mode == "eager":
            make_recordable(optimizer)  # the same arithmetic
        runner = made_runner(model, CAPACITIES, mode, loss=squared, optimizer=optimizer)
        runner.warmup(esol)
        batch = batch_of(esol)
        results.append([float(runner.step(batch)) for _ in range(4)])
        assert all(group["fused"] for group in optimizer.param_groups)
        if mode == "cuda-graph":
            assert runner.report().replays
    assert results[0] == results[1]


def test_an_optimizer_is_left_alone_where_its_step_is_not_recorded():
    for mode, scope in (("eager", "step"), ("cuda-graph", "forward_backward"), ("auto", "step")):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        before = [dict(group) for group in optimizer.param_groups]
        made_runner(model, CAPACITIES, mode, loss=squared, optimizer=optimizer, scope=scope)
        assert optimizer.param_groups == before, mode


def test_what_a_user_asked_of_an_optimizer_stays():
    model = Net()
    asked = torch.optim.Adam(model.parameters(), foreach=True)
    make_recordable(asked)
    assert asked.param_groups[0]["foreach"]
    assert not asked.param_groups[0]["fused"]
    for left in (
        sgd(model, 1e-4, momentum=0.9, dampening=0.5),
        torch.optim.Adagrad(model.parameters()),
    ):
        before = dict(left.param_groups[0])
        make_recordable(left)
        assert left.param_groups[0] == before
        with pytest.raises(sg.NotStatic, match="scope='forward_backward'"):
            check_recordable(left)


# ---------------------------------------------------------------------- loaders


@pytest.mark.parametrize("kernels", [False, True])
def test_a_runners_own_loader_knows_device_and_pointers(esol, kernels):
    model = sg.convert(sg.models.build("gine", esol, hidden=8, layers=1), kernels=kernels)
    plan = sg.plan_buckets(esol, batch_size=16)
    runner = sg.StaticGraphRunner(model, plan)
    ours = runner.loader(esol, indices=range(64), shuffle=True, seed=3)
    theirs = sg.StaticLoader(esol, plan, indices=range(64), shuffle=True, seed=3, pointers=kernels)
    assert ours.device == runner.device
    for one, other in zip(ours, theirs, strict=True):
        assert (one.layout.bucket, one.layout.pointers) == (other.layout.bucket, kernels)
        assert torch.equal(one.graph_ids, other.graph_ids)
        runner(one)


def test_one_call_is_the_same_as_its_parts(esol):
    """A plain PyG loop over the loader's batches, each without padding, has the same losses."""
    model = Net()
    twin = copy.deepcopy(model)
    runner, loader = sg.prepare(
        model, esol[:50], 16, mode="eager", loss=squared, optimizer=sgd(model, 1e-4), seed=3
    )
    optimizer = sgd(twin, 1e-4)
    seen, sizes = [], []
    for batch in loader:
        graphs = esol[real_ids(batch)]
        sizes.append(len(graphs))
        data = Batch.from_data_list(graphs)
        loss = squared(twin(data.x, data.batch, data.num_graphs), data).mean()
        update(optimizer, loss)
        torch.testing.assert_close(runner.step(batch), loss.detach())
        seen += real_ids(batch)
    assert sorted(seen) == list(range(50)) != seen
    assert sizes == [16, 16, 16, 2]


# ---------------------------------------------------------------------- budgets


def test_a_budget_carries_what_predicts_its_bytes(esol):
    model = Net()
    memory = sg.probe(model, esol, loss=squared, optimizer=sgd(model, 1e-4))
    budget = sg.MemoryBudget("64MiB")
    assert budget.memory is None
    carries = budget.with_memory(memory)
    assert (carries.memory, carries.max_bytes) == (memory, budget.max_bytes)
    options = {"indices": range(200), "min_steps_per_epoch": 4}
    plan = sg.plan_buckets(esol, budget=carries, **options)
    assert plan == sg.plan_buckets(esol, memory=memory, budget=budget, **options)
    runner = sgd_runner(model, plan, "auto", rate=1e-4, budget=carries)
    assert 0 < runner.stats().bytes_committed <= budget.max_bytes
