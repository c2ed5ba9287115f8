"""Several threads, several runners, plain PyG beside them: everyone gets what he would get alone.

Interleaving is made, not hoped for: a forward stops in its middle until the other thread has
finished or waits for its turn, or all meet at a barrier there.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import torch_geometric.nn as pyg
from support.patience import patience
from support.runners import made_runner
from support.tape import TapeRecorder
from torch import nn
from torch_geometric import utils
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool, global_mean_pool
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils.num_nodes import maybe_num_nodes

import staticgraph as sg
from staticgraph.nn import functions
from staticgraph.nn.context import present
from staticgraph.nn.context.dispatch import stock
from staticgraph.runner import turns
from staticgraph.steps.compiled import CompiledFunction

PATIENCE_S = patience(30)  # until a test that hangs fails; nothing is timed


def graphs(count: int, seed: int) -> list[Data]:
    random = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        nodes = 3 + (number * 5 + seed) % 7
        edges = torch.randint(nodes, (2, 2 * nodes), generator=random)
        made.append(
            Data(
                x=torch.randn(nodes, 4, generator=random, dtype=torch.float64),
                edge_index=edges,
                y=torch.randn(1, generator=random, dtype=torch.float64),
            )
        )
    return made


GRAPHS = graphs(24, 0)
STORE = sg.GraphStore.from_pyg(GRAPHS)
CAPACITY = sg.Capacity(nodes=100, edges=200, graphs=13, max_graph_nodes=10)


class Net(nn.Module):
    """A function and layers of PyG on both sides of its middle."""

    def __init__(self, seed: int = 0, middle=lambda: None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = pyg.GATConv(4, 6)  # self-loops removed and added
        self.norm = nn.BatchNorm1d(6)
        self.second = pyg.GCNConv(6, 6)
        self.again = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 1)
        self.middle = middle
        self.double()

    def forward(self, x, edge_index, batch):
        h = self.norm(self.first(x, edge_index)).relu()
        self.middle()
        h = self.again(self.second(h, edge_index)).relu()
        return self.head(global_mean_pool(h, batch)).view(-1)


def loss(out, batch):
    return (out - batch.y.view(-1)).square()


def runner_of(model: nn.Module, **options) -> sg.StaticGraphRunner:
    """A runner that has looked at its model already, so that the model's middle is reached by the
    steps of a test alone."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, fused=options.get("mode") == "cuda-graph"
    )
    runner = made_runner(
        model,
        [CAPACITY],
        **{"mode": "eager", "loss": loss, "check_padding": False} | options,
        optimizer=optimizer,
    )
    middle, training = vars(model).pop("middle", None), model.training
    if middle is not None:
        model.middle = lambda: None
    for flag in (not training, training):
        model.train(flag)
        runner._computation.known(batch_of())
    if middle is not None:
        model.middle = middle
    return runner


def batch_of(first: int = 0, count: int = 10) -> sg.StaticBatch:
    return sg.StaticBatch.of(STORE, range(first, first + count), CAPACITY)


def plain(model: nn.Module, some: list[Data]) -> torch.Tensor:
    """What PyG gives on a batch without padding, by a copy that was never converted."""
    data = Batch.from_data_list(some)
    return model(data.x, data.edge_index, data.batch)


class Elsewhere(threading.Thread):
    """A thread that hands on what its work returned or raised."""

    def __init__(self, work) -> None:
        super().__init__(daemon=True)
        self._work, self._result, self._error = work, None, None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def start_and_let_run(self) -> None:
        """Until it has finished, or waits for a turn that another thread has."""
        self.start()
        until = time.monotonic() + PATIENCE_S
        while self.is_alive() and self.ident not in turns._WAITING:
            assert time.monotonic() < until
            time.sleep(0.001)

    def result(self):
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result


class Once:
    """Calls ``work`` the first time it is called."""

    def __init__(self, work=None) -> None:
        self.work = work

    def __call__(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()


def same(found, expected) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- one runner


def test_three_threads_predict_with_one_runner():
    middle = Once()
    model = Net(middle=middle)
    model.train()
    before = copy.deepcopy(model.state_dict())
    runner = runner_of(model)
    parts = [GRAPHS[:9], GRAPHS[9:14], GRAPHS[14:]]
    expected = [runner.predict(part) for part in parts]
    twin = Net().eval()
    assert all(same(e, plain(twin, part)) for e, part in zip(expected, parts, strict=True))
    others = [Elsewhere(lambda p=part: runner.predict(p)) for part in parts[1:]]
    middle.work = lambda: [other.start_and_let_run() for other in others]
    found = [runner.predict(parts[0]), *(other.result() for other in others)]
    assert all(same(f, e) for f, e in zip(found, expected, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("ask", ["predict", "eval_step", "runner"])
def test_a_step_is_not_disturbed_from_another_thread(ask):
    """Neither by the flags that evaluation sets, nor by another batch."""
    middle = Once()
    alone, model = Net(), Net(middle=middle)
    expected = runner_of(alone).step(batch_of())
    runner = runner_of(model)
    work = {
        "predict": lambda: runner.predict(GRAPHS[10:]),
        "eval_step": lambda: runner.eval_step(batch_of(10, 12)).out,
        "runner": lambda: runner(batch_of(10, 12)).detach(),
    }[ask]
    other = Elsewhere(work)
    middle.work = other.start_and_let_run
    assert same(runner.step(batch_of()), expected)
    asked = other.result()
    if ask != "runner":  # whose statistics are updated, in training mode
        for name, value in model.state_dict().items():
            assert same(value, alone.state_dict()[name]), name
        assert same(asked, work())
    assert model.training


def test_two_runners_over_one_model_take_turns():
    middle = Once()
    alone, model = Net(), Net(middle=middle)
    expected = [runner_of(alone).step(batch_of()), runner_of(alone).step(batch_of(10))]
    first, second = (
        runner_of(model),
        runner_of(nn.Sequential(model), forward=lambda m, b: m[0](b.x, b.edge_index, b.batch)),
    )
    other = Elsewhere(lambda: second.step(batch_of(10)))
    middle.work = other.start_and_let_run
    assert same(first.step(batch_of()), expected[0])
    assert same(other.result(), expected[1])


# ---------------------------------------------------------------- several, and plain PyG


def test_two_runners_and_plain_pyg_in_three_threads():
    """All three stand in the middle of a forward at the same time."""
    alone = [Net(seed) for seed in range(3)]
    with_kernels = sg.convert(alone[1], kernels="all")
    expected = [
        runner_of(alone[0]).step(batch_of()),
        runner_of(with_kernels).step(batch_with_pointers(10)),
        plain(alone[2], GRAPHS[:7]),
    ]
    barrier = threading.Barrier(3)
    meet = functools.partial(barrier.wait, PATIENCE_S)
    models = [Net(seed, middle=meet) for seed in range(3)]
    runners = [runner_of(models[0]), runner_of(sg.convert(models[1], kernels="all"))]
    works = [
        Elsewhere(lambda: runners[0].step(batch_of())),
        Elsewhere(lambda: runners[1].step(batch_with_pointers(10))),
        Elsewhere(lambda: plain(models[2], GRAPHS[:7])),
    ]
    for work in works:
        work.start()
    for work, value in zip(works, expected, strict=True):
        assert same(work.result(), value)


def batch_with_pointers(first: int) -> sg.StaticBatch:
    return sg.StaticBatch.of(STORE, range(first, first + 10), CAPACITY, pointers=True)


def test_plain_pyg_does_not_wait_for_a_step():
    middle = Once()
    other = Elsewhere(lambda: plain(Net(1), GRAPHS[:7]))
    found = []
    middle.work = lambda: (other.start(), found.append(other.result()))
    runner_of(Net(middle=middle)).step(batch_of())
    assert same(found[0], plain(Net(1), GRAPHS[:7]))


# ---------------------------------------------------------------- one inside another


class Student(Net):
    """Learns from another model's outputs as well, which it asks for in its middle."""

    def forward(self, x, edge_index, batch, teach):
        taught = []
        self.middle = lambda: taught.append(teach())
        return super().forward(x, edge_index, batch) - taught[0]


@pytest.mark.parametrize("mode", ["eager", "cuda-graph", "default"])
def test_a_teacher_runs_inside_a_students_forward(mode):
    teacher = Net(1)
    plain_teacher, plain_student = copy.deepcopy(teacher).eval(), Student(2)
    data = Batch.from_data_list(GRAPHS[:10])
    given = data.x, data.edge_index, data.batch
    out = plain_student(*given, lambda: plain_teacher(*given).detach())
    expected = loss(out, data).mean()

    recorder = TapeRecorder if mode == "cuda-graph" else None
    teaching = runner_of(teacher, mode=mode, recorder=recorder, loss=None)
    if mode != "eager":
        teaching.warmup(STORE, progress=False)

    def forward(model, batch):
        return model(
            batch.x, batch.edge_index, batch.batch, lambda: teaching.eval_step(batch).out.clone()
        )

    student = runner_of(Student(2), forward=forward)
    for _ in range(2):  # the second asks what was compiled, or recorded, already
        torch.testing.assert_close(student.eval_step(batch_of()).loss, eval_loss(data))
    found = student.step(batch_of())
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    assert teacher.training
    assert present.present() is None


def eval_loss(data) -> torch.Tensor:
    given = data.x, data.edge_index, data.batch
    with torch.no_grad():
        out = Student(2).eval()(*given, lambda: Net(1).eval()(*given))
    return loss(out, data).mean()


def test_a_model_evaluates_itself_inside_its_loss():
    alone, model = Net(), Net()
    expected = runner_of(alone).step(batch_of()) + runner_of(Net()).predict(GRAPHS[:3]).sum()

    def of_both(out, batch):
        return loss(out, batch) + holder.predict(GRAPHS[:3]).sum()

    holder = runner_of(model, loss=of_both)
    norm, others = copy.deepcopy(model.norm.state_dict()), Net()
    others.load_state_dict(model.state_dict())
    found = holder.step(batch_of())
    assert model.training
    assert not torch.equal(model.norm.running_mean, norm["running_mean"])
    # The predictions inside saw the statistics that this step's forward had updated.
    updated = {k: v for k, v in alone.state_dict().items() if "running" in k or "num_" in k}
    others.load_state_dict(updated, strict=False)
    inside = plain(others.eval(), GRAPHS[:3]).sum()
    first = expected - runner_of(Net()).predict(GRAPHS[:3]).sum()
    assert torch.allclose(found, first + inside.detach(), rtol=0, atol=1e-10)


def test_a_step_inside_its_own_forward_is_refused():
    middle = Once(lambda: runner.step(batch_of()))
    runner = runner_of(Net(middle=middle))
    with pytest.raises(RuntimeError, match=r"^step\(\) of a model inside a forward of its own"):
        runner.step(batch_of())
    assert float(runner.step(batch_of())) > 0  # nothing is left behind
    assert present.present() is None


def test_a_runner_inside_its_own_warmup_is_refused():
    model = Net()
    runner = runner_of(model, mode="cuda-graph", recorder=TapeRecorder)
    model.middle = lambda: runner.eval_step(batch_of())
    with pytest.raises(sg.NotStatic, match=r"a forward of a model inside its own warmup\(\)"):
        runner.warmup(STORE, progress=False)


def test_a_runner_inside_a_compiled_step_is_refused():
    teacher = runner_of(Net(1))
    student = runner_of(
        Net(2), mode="default", forward=lambda m, b: m(b.x, b.edge_index, b.batch) - teacher(b)
    )
    with pytest.raises(sg.NotStatic, match="of a runner stands inside a compiled step: "):
        student.step(batch_of())


def test_models_that_wait_for_each_other_are_refused():
    """Each runs the other inside its own forward, in two threads: one gets an error, none hangs."""
    ready = threading.Barrier(2)
    middles = [Once(), Once()]
    runners = [runner_of(Net(seed, middle=middles[seed])) for seed in range(2)]

    def ask(other):
        ready.wait(PATIENCE_S)
        runners[other].eval_step(batch_of())

    for own in range(2):
        middles[own].work = functools.partial(ask, 1 - own)
    works = [Elsewhere(lambda r=runner: r.eval_step(batch_of()).out) for runner in runners]
    for work in works:
        work.start()
    outcomes = []
    for work in works:
        try:
            work.result()
            outcomes.append("ran")
        except RuntimeError as error:
            outcomes.append(str(error))
    refused, ran = sorted(outcomes, key=len, reverse=True)
    assert "waits for a model that another thread runs" in refused
    assert ran == "ran"


def test_modules_shared_with_a_later_model_stay_static_in_the_earlier():
    """Runners over two models, then one over both: the layers see whichever batch is present."""
    models = [Net(0), Net(1)]
    expected = [runner_of(Net(seed)).step(batch_of()) for seed in range(2)]
    runners = [runner_of(model) for model in models]
    runner_of(
        nn.ModuleList(models), forward=lambda m, b: sum(n(b.x, b.edge_index, b.batch) for n in m)
    )
    for runner, value in zip(runners, expected, strict=True):
        assert same(runner.step(batch_of()), value)


# ---------------------------------------------------------------- what backward runs again


class Checkpointed(Net):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self._reentrant = reentrant

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index)

        def inner(h):
            return self.again(self.second(self.norm(h), edge_index))

        h = torch.utils.checkpoint.checkpoint(inner, h, use_reentrant=self._reentrant)
        return self.head(global_mean_pool(h, batch)).view(-1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["step", "own loop", "another thread", "inside another"])
def test_checkpointing_runs_its_layers_again_over_the_batch_of_the_forward(reentrant, how):
    """In whichever thread backward runs (on CUDA it is autograd's), and after another forward."""
    theirs, ours = Checkpointed(reentrant), Checkpointed(reentrant)
    data = Batch.from_data_list(GRAPHS[:10])
    loss(theirs(data.x, data.edge_index, data.batch), data).mean().backward()
    runner = runner_of(ours, clip_norm=None)
    batch = batch_of()
    runner.optimizer.param_groups[0]["lr"] = 0.0

    def own_loop() -> None:
        mean = loss(runner(batch), batch)[batch.graph_mask].mean()
        other = runner_of(Net(5))
        other(batch_of(10))
        if how == "another thread":
            work = Elsewhere(mean.backward)
            work.start()
            work.result()
        elif how == "inside another":
            outer = runner_of(Net(6, middle=mean.backward))
            outer.eval_step(batch_of(10))
        else:
            mean.backward()

    runner.step(batch) if how == "step" else own_loop()
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(found.grad, expected.grad, rtol=1e-9, atol=1e-12), name


POOLINGS = {
    "topk": lambda: pyg.TopKPooling(6, ratio=0.5),
    "sag": lambda: pyg.SAGPooling(6, ratio=0.5),
    "score": lambda: pyg.TopKPooling(6, min_score=0.1),
}


class CheckpointedPools(nn.Module):
    """Two blocks that backward runs again, the last first, each with a pool of its own."""

    def __init__(self, pooling: str, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._reentrant = reentrant
        self.first = pyg.GCNConv(4, 6)
        self.pools = nn.ModuleList(POOLINGS[pooling]() for _ in range(2))
        self.convs = nn.ModuleList(pyg.GCNConv(6, 6) for _ in range(2))  # loops over pooled edges
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2))
        self.head = nn.Linear(6, 1)
        self.double()

    def block(self, number: int, h, edge_index, batch):
        h, edge_index, _, batch, *_ = self.pools[number](h, edge_index, batch=batch)
        return self.norms[number](self.convs[number](h, edge_index)).tanh(), edge_index, batch

    def forward(self, x, edge_index, batch, batch_size):
        h, groups = self.first(x, edge_index), batch
        for number in range(2):
            h, edge_index, groups = torch.utils.checkpoint.checkpoint(
                self.block, number, h, edge_index, groups, use_reentrant=self._reentrant
            )
        return self.head(global_mean_pool(h, groups, batch_size)).view(-1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pool_that_runs_again_has_the_rows_it_had(pooling, reentrant):
    """Its row count was the first that meant nothing yet, and by then means its own rows."""
    theirs, ours = (CheckpointedPools(pooling, reentrant) for _ in range(2))
    data = Batch.from_data_list(GRAPHS[:10])
    loss(theirs(data.x, data.edge_index, data.batch, 10), data).mean().backward()
    runner = runner_of(ours)
    runner.optimizer.param_groups[0]["lr"] = 0.0
    runner.step(batch_of())
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(found.grad, expected.grad, rtol=1e-9, atol=1e-12), name


def test_calls_of_one_pool_that_cannot_be_told_apart_are_refused():
    class Twice(CheckpointedPools):
        def forward(self, x, edge_index, batch, batch_size):
            h = self.first(x, edge_index)

            def both(h):
                views = [self.block(0, each, edge_index, batch) for each in (h, -h)]
                pooled = [global_mean_pool(v, groups, batch_size) for v, _, groups in views]
                return pooled[0] + pooled[1]

            h = torch.utils.checkpoint.checkpoint(both, h, use_reentrant=self._reentrant)
            return self.head(h).view(-1)

    with pytest.raises(sg.NotStatic, match="TopKPooling ran 2 times over as many rows"):
        runner_of(Twice("topk", False)).step(batch_of())


def test_a_kept_output_keeps_no_slot_of_the_loader():
    runner = runner_of(Net())
    kept = [runner(batch) for batch in sg.StaticLoader(STORE, runner.plan, slots=2)]
    assert len(kept) == 2


# ---------------------------------------------------------------- PyG itself


LISTED = sorted(functions.static_functions(), key=lambda f: f.__qualname__)


@pytest.mark.parametrize("function", LISTED, ids=lambda f: f.__qualname__)
def test_a_listed_function_is_still_itself(function):
    sg.convert(nn.Identity())
    own = stock(function)
    assert function.__code__ is not own.__code__  # it dispatches
    assert inspect.signature(function) == inspect.signature(own)
    assert inspect.getfullargspec(function) == inspect.getfullargspec(own)
    assert inspect.getsource(function) == inspect.getsource(own)
    assert (function.__defaults__, function.__name__) == (own.__defaults__, own.__name__)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    functions.install()
    assert stock(function) is own


def test_outside_of_a_step_pyg_computes_what_it_did():
    runner_of(Net()).step(batch_of())
    index = torch.tensor([[0, 1, 1, 2], [1, 1, 0, 0]])
    assert utils.remove_self_loops(index)[0].shape == (2, 3)
    assert utils.subgraph([0, 1], index)[0].shape == (2, 3)
    assert maybe_num_nodes(index) == 3
    dense, mask = utils.to_dense_batch(torch.ones(3, 2), torch.tensor([0, 0, 2]))
    assert dense.shape == (3, 2, 2)
    assert type(mask) is torch.Tensor
    assert pyg.SumAggregation()(torch.ones(3, 2), torch.tensor([0, 0, 4])).shape == (5, 2)
    with pytest.raises(ValueError, match="dim_size"):
        pyg.SumAggregation()(torch.ones(3, 2), torch.tensor([0, 0, 4]), dim_size=2)


def test_scripting_compiles_pygs_own_source():
    sg.convert(nn.Identity())
    index = torch.tensor([[0, 1, 1], [1, 1, 0]])
    scripted = torch.jit.script(maybe_num_nodes)
    assert scripted(index) == 2
    pool = torch.jit.script(global_add_pool)
    assert pool(torch.ones(3, 2), torch.tensor([0, 0, 3])).shape == (4, 2)


def test_whoever_holds_a_function_holds_the_dispatching_one():
    """In a closure, a default argument, a container, a partial, a class made beforehand."""
    held = [global_add_pool]

    class Pools(nn.Module):
        def forward(self, x, batch, default=global_add_pool):
            pools = [default, held[0], functools.partial(global_add_pool), lambda *a: held[0](*a)]
            return torch.stack([pool(x, batch).sum(1) for pool in pools], 1)

    out = sg.StaticGraphRunner(Pools(), [CAPACITY], "eager")(batch_of())
    assert out.shape == (CAPACITY.graphs, 4)


def test_own_compilation_of_plain_pyg_beside_a_step():
    """A graph that the user compiled for plain PyG is not used while a batch is present in its
    thread, and is, in every other."""
    captured = []

    def backend(graph, inputs):
        captured.append(graph)
        return graph.forward

    convolution = pyg.GraphConv(4, 4).double()
    compiled = torch.compile(convolution, backend=backend, dynamic=False)
    data = Batch.from_data_list(GRAPHS[:5])
    expected = convolution(data.x, data.edge_index)
    assert same(compiled(data.x, data.edge_index), expected)
    count = len(captured)
    middle = Once()
    other = Elsewhere(lambda: compiled(data.x, data.edge_index))
    middle.work = lambda: (other.start(), other.result())
    runner_of(Net(middle=middle)).step(batch_of())
    assert same(other.result(), expected)
    assert len(captured) == count


def test_a_compiled_part_of_an_eager_model_is_static_in_a_step():
    """What the user compiled himself sees the batch of the thread that calls it."""
    model, twin = Net(), Net()
    expected = runner_of(twin).eval_step(batch_of()).out
    model.eval()
    some = Batch.from_data_list(GRAPHS[:5])
    model.second = torch.compile(model.second, backend="eager", dynamic=False)
    before = plain(model, GRAPHS[:5])
    assert same(runner_of(model).eval_step(batch_of()).out[:10], expected[:10])
    assert same(model(some.x, some.edge_index, some.batch), before)


# ---------------------------------------------------------------- compiled, and recorded


def test_a_compiled_step_changes_no_setting_of_the_process(monkeypatch):
    """torch's stance is for all threads: a compilation of the user's own would have failed."""
    runner = runner_of(
        nn.Linear(4, 1).double(), mode="default", forward=lambda m, b: m(b.x)[: b.num_graphs, 0]
    )
    runner.step(batch_of())
    seen, call = [], CompiledFunction._again

    def watched(self, tensors):
        own, inner = self._call, lambda *given: (seen.append(stance()), own(*given))[1]
        self._call = inner
        try:
            return call(self, tensors)
        finally:
            self._call = own

    def stance() -> str:
        return torch._dynamo.eval_frame._stance.stance

    monkeypatch.setattr(CompiledFunction, "_again", watched)
    runner.step(batch_of())
    assert seen == ["default"]


def test_nothing_of_pyg_happens_around_a_replay():
    model = Net()
    runner = runner_of(model, mode="cuda-graph", recorder=TapeRecorder, on_miss="error")
    runner.warmup(STORE, progress=False)
    batches = [batch_of(), batch_of(10)]
    called: set[str] = set()

    def profile(frame, event, _):
        if event == "call":
            called.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        for batch in batches:
            runner.step(batch)
            runner.eval_step(batch)
    finally:
        sys.setprofile(None)
    assert any(file.endswith("recorded.py") for file in called)
    own = {file for file in called if "torch_geometric" in file or "/staticgraph/nn/" in file}
    assert own == set()


def test_aggregations_ask_for_the_present_batch_in_subclasses():
    class Own(Aggregation):
        def forward(self, x, index=None, ptr=None, dim_size=None, dim=-2):
            return self.reduce(x, index, ptr, dim_size, dim, reduce="sum")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = Own()

        def forward(self, x, batch):
            return self.own(x, batch)

    out = sg.StaticGraphRunner(Model(), [CAPACITY], "eager")(batch_of())
    data = Batch.from_data_list(GRAPHS[:10])
    assert same(out[:10], Own()(data.x, data.batch))
    assert F.mse_loss(out[:10], out[:10]) == 0
