"""A norm's statistics from the product before it: its code for an H100, where it is chosen, and
equal results of a rewritten model. Values are tested by the interpreted files."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import triton
from packaging.version import Version
from support.compiled import launches
from torch import nn
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph import rewrites
from staticgraph.checking.explain import explain
from staticgraph.dryrun.operations import further_launches, operations
from staticgraph.kernels.batch_norm import gpu as norm
from staticgraph.kernels.batch_norm import op as norm_op
from staticgraph.kernels.batch_norm import partials
from staticgraph.kernels.linear_statistics import gpu, linear_statistics_handed_on
from staticgraph.rewrites import RewriteTarget
from staticgraph.rewrites.layers import linear_statistics
from staticgraph.steps.compilation import captured_step
from staticgraph.steps.computation.model_setup import Subject

MULTIPROCESSORS, REGISTERS, SHARED = 132, 65536, 227 * 1024
COUNT = torch.tensor(5)


# ---------------------------------------------------------------------- the kernel


@pytest.mark.sampled(3)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [8192, 4096, 2048])
def test_all_programs_fit_an_h100_at_once(rows, given):
    """At 300 columns, for every tile height: higher tiles mean fewer programs, and none waits for
    another. Compiled for sm_90: vector loads, tensor cores, no spills, no atomics."""
    x, weight = torch.zeros(rows, 300, dtype=given), torch.zeros(300, 300)
    (one,) = launches(gpu.forward, x, weight, weight[0], COUNT, False, torch.bfloat16)
    assert (one.spilled, one.atomics, one.loops) == (0, [], 1)
    assert one.matrix_instructions > 0
    assert one.widest("ld") == 128
    threads = 256 if rows == 8192 else 128
    registers = -(-one.registers // 8) * 8 * threads  # allocated in units of eight
    blocks = min(REGISTERS // registers, SHARED // (one.shared + 1024))
    # Triton before 3.9 takes more registers for the highest tile: a few of its programs wait.
    turns = 1 if rows < 8192 or Version(triton.__version__) >= Version("3.9") else 2
    assert turns * blocks * MULTIPROCESSORS >= partials.partials_of(rows) * 5


def test_a_norm_that_is_given_statistics_is_one_launch_but_for_a_cumulative_mean(monkeypatch):
    called = []
    monkeypatch.setattr(norm, "forward", lambda *given: called.append(len(given)))
    x, ones, partial = torch.zeros(1100, 4), torch.ones(4), torch.zeros(35, 2, 4)
    for momentum, taken, launched in ((0.1, 13, 1), (None, 12, 2)):
        given = (x, None, None, ones, ones, COUNT, ones, ones, COUNT, momentum, 1e-5, True, partial)
        norm_op._on_cuda(*given)
        assert called.pop() == taken, "with the statistics, or without"
        name = "staticgraph::batch_norm"
        assert operations(name, given) + further_launches(name, given) == launched


def test_a_gradient_comes_back_by_what_is_read_on_alone():
    x, weight = torch.randn(9, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    _, partial, same = linear_statistics_handed_on(x, weight, None, COUNT)
    assert not partial.requires_grad
    (same * 2).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))


# ---------------------------------------------------------------------- where it is chosen

CAPACITY = (1100, 2400, 64)
IDS = list(range(60))


class Net(nn.Module):
    """Norms of linear layers (also with several readers or after ReLU) and of a sum; 8 columns."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.layers: nn.ModuleList = nn.ModuleList(nn.Linear(i, 8) for i in (9, 8, 8, 8))
        self.norms: nn.ModuleList = nn.ModuleList(
            nn.BatchNorm1d(8, momentum=momentum) for _ in range(4)
        )
        self.head: nn.Linear = nn.Linear(8, 1)

    def forward(self, x, batch, batch_size):
        first, second, third, fourth = self.layers
        norms = self.norms
        h = first(x.to(self.head.weight.dtype))
        h = h + norms[0](h).relu()
        g = second(h)
        h = h + norms[1](g) + g.sigmoid() + third(h)
        h = norms[2](third(h).relu()) + h
        h = norms[3](h + fourth(h))
        return self.head(global_add_pool(h, batch, batch_size))


def on_cuda(monkeypatch, module=rewrites) -> None:
    """Rewrites graphs as if for CUDA; the operators' CPU implementations run."""
    monkeypatch.setattr(
        module, "RewriteTarget", lambda device, compiled: RewriteTarget("cuda", compiled=compiled)
    )


def run(model, store, padding: float = 1.0, capacity=CAPACITY, dtype=torch.bfloat16):
    """Outputs, gradients and statistics after one step, and the rewritten graph."""
    model = copy.deepcopy(model)
    subject = Subject(model, check_padding=False, autocast=dtype)
    runner = sg.StaticGraphRunner(subject, [capacity], "fused")
    batch = sg.StaticBatch.of(store, IDS, capacity)
    batch.x[~batch.node_mask] = int(padding)
    out = runner(batch)[batch.graph_mask]
    out.float().square().mean().backward()
    (function,) = runner.steps.compiled._functions.values()
    grads = [p.grad for p in model.parameters()]
    return [out.detach(), *grads, *model.buffers()], function.captured


def test_a_rewritten_model_computes_what_it_did(esol, monkeypatch):
    """Norms after a linear layer, with or without ReLU or other readers, get its statistics; the
    norm of a sum does not, and is named. Results match norms that compute their own statistics, to
    bfloat16 rounding; padding does not change a bit."""
    on_cuda(monkeypatch)
    torch.manual_seed(0)
    model = Net()
    found, captured = run(model, esol)
    assert Counter(place.rewrite for place in captured.done)["linear_statistics"] == 3
    (missed,) = captured.missed.values()
    assert missed.reason == "it is a sum that is normalised, not the linear layer alone"
    assert "norms.3" in missed.layer
    again, _ = run(model, esol, padding=1000.0)
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    monkeypatch.setattr(linear_statistics, "saves", lambda *_: False)
    usual, captured = run(model, esol)
    assert "linear_statistics" not in {place.rewrite for place in captured.done}
    for ours, theirs in zip(found, usual, strict=True):
        scale = theirs.double().abs().max()
        assert (ours.double() - theirs.double()).abs().max() <= 0.02 * scale


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": None}, None),
        ({"capacity": (1024, 2400, 64)}, None),
        ({"capacity": (partials.MAX_ROWS + 1, 2400, 64)}, "have more tiles than the 64 chunks"),
    ],
    ids=["float32", "few rows", "many rows"],
)
def test_where_it_saves_nothing_the_graph_stays(change, reason, esol, monkeypatch):
    on_cuda(monkeypatch)
    _, captured = run(Net(), esol, **change)
    assert "linear_statistics" not in {place.rewrite for place in captured.done}
    said = [place.reason for place in captured.missed.values() if "sum" not in place.reason]
    assert len(said) == (3 if reason else 0)
    assert all(reason in one for one in said)


def test_explain_names_what_is_given_statistics_and_what_is_not(esol, monkeypatch):
    on_cuda(monkeypatch, captured_step)
    for momentum, named in ((0.1, 3), (None, 0)):
        subject = Subject(Net(momentum), autocast=torch.bfloat16)
        found = explain(subject, [CAPACITY], esol)
        done = [place for place in found.done if place.rewrite == "linear_statistics"]
        assert len(done) == named
        assert ("a cumulative mean" in str(found)) == (named == 0)
    assert {place.layer for place in found.missed} >= {"norms.0", "norms.1", "norms.2"}
