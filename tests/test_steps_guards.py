"""Later calls of a fused step: few guards, no frame evaluation, and every change still noticed."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import CAPACITY, IDS
from support.runners import made_runner, sgd_runner
from support.written_by_hand import Trunk, gine
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.guards import CheckFunctionManager
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.nn import GATConv, global_add_pool

import staticgraph as sg
from staticgraph.nn.context.row_queries import APART
from staticgraph.steps.compilation import guards
from staticgraph.steps.computation.model_setup import Subject

SCALE = 2.0


def doubled(x):
    return 2 * x


class Model(nn.Module):
    """Reads all that a user may change: attributes, flags, a global, a function, layers."""

    def __init__(self):
        super().__init__()
        self.conv = GATConv(9, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.slope, self.sizes, self.function = 0.1, {"a": 1.0}, doubled

    def forward(self, x, edge_index, batch):
        h = self.norm(self.conv(x.to(self.conv.bias), edge_index))
        h = F.leaky_relu(self.drop(h), self.slope) * SCALE + self.sizes["a"]
        return self.function(self.head(global_add_pool(h, batch)))


def captured(model, esol, **options):
    runner = sg.StaticGraphRunner(
        Subject(model, check_padding=False, **options), [CAPACITY], "fused"
    )
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    return runner, batch


def function_of(runner):
    (function,) = runner.steps.compiled._functions.values()
    return function


def attribute(path, name, value):
    @contextmanager
    def changed(model):
        layer = model.get_submodule(path)
        before = getattr(layer, name)
        setattr(layer, name, value)
        yield
        setattr(layer, name, before)

    return changed


@contextmanager
def shadowed(model):
    model.head[1].forward = torch.tanh
    yield
    del model.head[1].forward


@contextmanager
def rebound(model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3.0)
        yield


@contextmanager
def of_a_dictionary(model):
    model.sizes["a"] = 2.0
    yield
    model.sizes["a"] = 1.0


CHANGES = {
    "a flag of one layer": attribute("drop", "training", False),
    "a rate": attribute("drop", "p", 0.1),
    "an option": attribute("norm", "eps", 1e-2),
    "a number of the model's own": attribute("", "slope", 0.2),
    "an option of a layer of PyG": attribute("conv", "negative_slope", 0.3),
    "a function": attribute("", "function", torch.tanh),
    "a layer": attribute("head", "1", nn.SiLU()),
    "a method of one layer": shadowed,
    "a global": rebound,
    "a dictionary": of_a_dictionary,
}


@pytest.fixture(scope="module")
def one_for_all(esol):
    runner, batch = captured(Model(), esol)
    runner(batch)
    return runner, batch


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_user_changes_is_refused(change, one_for_all, monkeypatch):
    """Nothing is traced for it; once the change is undone, the step runs again."""
    runner, batch = one_for_all
    traced = []
    monkeypatch.setattr(type(function_of(runner)), "_compile", lambda *_: traced.append(1))
    with CHANGES[change](runner.model), pytest.raises(sg.NotStatic, match="compiled again"):
        runner(batch)
    assert not traced
    runner(batch)


SETTINGS = {
    torch.set_num_threads: (torch.get_num_threads, 3),
    torch.set_default_dtype: (torch.get_default_dtype, torch.float64),
    torch.use_deterministic_algorithms: (torch.are_deterministic_algorithms_enabled, True),
    torch.set_float32_matmul_precision: (torch.get_float32_matmul_precision, "medium"),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.__name__)
def test_a_setting_of_torch_that_changed_is_told_by_the_function_that_sets_it(setting, one_for_all):
    runner, batch = one_for_all
    present, other = SETTINGS[setting]
    before = present()
    setting(other)
    try:
        with pytest.raises(sg.NotStatic, match=rf"call torch\.{setting.__name__} before warmup"):
            runner(batch)
    finally:
        setting(before)
    runner(batch)


def test_a_number_that_changes_is_told_to_be_a_tensor_and_serves_as_one(esol):
    """Such as an annealed weight of a loss term; ``auto`` may have chosen the fused step, so the
    user need not have requested one."""
    beta = {"number": 1.0, "tensor": torch.tensor(1.0)}

    def runner_with(kind):
        torch.manual_seed(0)
        model = nn.Linear(9, 1)
        return sgd_runner(
            model,
            [CAPACITY],
            "fused",
            loss=lambda out, batch: beta[kind] * (out - 1).square(),
            forward=lambda model, batch: model(batch.x.float()),
        )

    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    by_number, by_tensor = runner_with("number"), runner_with("tensor")
    assert by_number.step(batch) == by_tensor.step(batch)
    first = float(by_tensor.step(batch))
    beta["number"] = 0.5
    beta["tensor"].fill_(0.5)
    with pytest.raises(sg.NotStatic, match=r"(?s)compiled again.*in a tensor.*fill_"):
        by_number.step(batch)
    for runner in (by_tensor, by_number.warmup(batch, ["step"])):  # which compiles anew
        assert float(runner.step(batch)) == pytest.approx(first / 2)


def test_a_mode_that_counts_sees_the_step_and_every_change_is_still_refused(esol):
    model = Trunk(gine, 16, 2).eval()
    runner, batch = captured(model, esol)
    expected = runner(batch)
    with FlopCounterMode(display=False) as counter:
        assert torch.equal(runner(batch), expected)
    linear = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    assert counter.get_total_flops() > linear
    runner, batch = captured(Model().eval(), esol)
    runner.model.slope = 0.5
    with FlopCounterMode(display=False), pytest.raises(sg.NotStatic, match="compiled again"):
        runner(batch)


def test_under_a_mode_that_counts_nothing_is_traced(esol):
    runner = made_runner(Model().eval(), [CAPACITY], "fused", check_padding=False)
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    with FlopCounterMode(display=False), pytest.raises(sg.NotStatic, match="before entering it"):
        runner(batch)
    runner(batch)


def test_an_exchanged_parameter_is_read_at_the_next_call(esol):
    model = Model().eval()
    runner, batch = captured(model, esol)
    before = runner(batch)
    with torch.no_grad():
        model.head[2].weight = nn.Parameter(3 * model.head[2].weight)
        model.head[2].bias = nn.Parameter(3 * model.head[2].bias)
    assert torch.allclose(runner(batch), 3 * before, rtol=1e-5)


def test_no_frame_is_evaluated_after_the_first_call(esol):
    """While all guards hold, torch.compile's own wrapper is not called."""
    runner, batch = captured(Model().eval(), esol)
    expected, function = runner(batch), function_of(runner)

    def fail(*tensors):
        raise AssertionError("torch.compile was called")

    function._call = function._next._call = fail
    assert torch.equal(runner(batch), expected)


def test_torchs_stance_is_kept(esol):
    """With the stance ``force_eager``, a step runs as eager does."""
    runner, batch = captured(Model().eval(), esol)
    expected, calls = runner(batch), []
    function = function_of(runner)
    function._next._call = lambda *tensors: calls.append(1) or function._call(*tensors)
    with torch.compiler.set_stance("force_eager"):
        out = runner(batch)
    assert calls == [1]
    assert torch.allclose(out, expected, rtol=1e-5)


def test_guards_of_what_cannot_change_are_gone(esol, monkeypatch):
    """Less than half of Dynamo's guards are left, built once, none on the library's own names."""
    noted, kept, built = [], [], []
    drop, build = guards.drop_guards, CheckFunctionManager.build_guards

    def dropping(dropped):
        def asked(kind, name):
            noted.append((kind, name))
            if not dropped(kind, name):
                kept.append((kind, name))
                return False
            return True

        return drop(asked)

    def building(self, *args, **options):
        built.append(1)
        return build(self, *args, **options)

    monkeypatch.setattr(guards, "drop_guards", dropping)
    monkeypatch.setattr(CheckFunctionManager, "build_guards", building)
    runner, _ = captured(Trunk(gine, layers=4), esol)
    assert len(built) == 1
    hooks = [kind for kind, _ in kept].count("EMPTY_NN_MODULE_HOOKS_DICT")
    assert function_of(runner).guards - hooks < 0.5 * len(noted)
    assert not [name for kind, name in kept if name.startswith("G['__import_staticgraph")]
    assert not [name for kind, name in kept if kind == "TENSOR_MATCH"]


def test_no_guard_is_answered_by_an_error(esol):
    """A guard on a missing attribute costs as much as fifty others."""
    runner, batch = captured(Trunk(gine), esol)
    (entry,) = _debug_get_cache_entry_list(function_of(runner)._function.__code__)
    built = str(entry.guard_manager)
    assert "DICT_CONTAINS" in built
    assert "NO_HASATTR" not in built
    runner.model.norms[1].__dict__[APART] = True  # setting the attribute is still noticed
    with pytest.raises(sg.NotStatic, match="compiled again"):
        runner(batch)


class Deletes(nn.Module):
    """Passes a tensor from one method to another through an attribute, as GatedGCN does."""

    def __init__(self, before):
        super().__init__()
        self.lin = nn.Linear(9, 1)
        if before:
            self.kept = None

    def forward(self, x, batch):
        self.kept = self.lin(x.to(self.lin.weight))
        out = self.kept.tanh()
        del self.kept
        return global_add_pool(out, batch)


def test_an_attribute_that_a_forward_deletes(esol):
    """If it is set in __init__, it exists before the first step and never again."""
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner = sg.StaticGraphRunner(Deletes(before=False), [CAPACITY], "fused")
    assert torch.equal(runner(batch), runner(batch))
    runner = sg.StaticGraphRunner(Deletes(before=True), [CAPACITY], "fused")
    runner(batch)
    with pytest.raises(sg.NotStatic, match=r"'kept': the forward deletes it.*Do not set it in"):
        runner(batch)
