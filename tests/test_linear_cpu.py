"""Products of linear layers on a CPU: oneDNN's where they are faster, and the same numbers."""

from __future__ import annotations

import copy
from unittest.mock import Mock

import pytest
import torch
from support.alike import assert_same_gradients
from support.rewritten import fired
from support.runners import sgd_runner
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.kernels.linear import cpu, linear, op

ROWS = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=ROWS)


@pytest.fixture
def onednn(monkeypatch):
    """As on a machine where oneDNN is faster, at any size."""
    monkeypatch.setattr(cpu, "_gains", lambda *_: (True, True))
    monkeypatch.setattr(cpu, "SMALL", 1)


class Operands(TorchDispatchMode):
    """Notes what oneDNN multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "linear_pointwise" in str(func):
            self.seen.append(args[:3])
        return func(*args, **(kwargs or {}))


A, B = drawn(300, 40), drawn(24, 40)
FORMS = {
    "dense": (A, B, drawn(24)),
    "a slice of a weight": (A, drawn(24, 90)[:, 20:60], None),
    "a slice of a transposed weight": (A, drawn(40, 90)[:, 20:44].t(), None),
    "every other row and bias": (A, drawn(48, 40)[::2], drawn(48)[::2]),
    "gradient of an input": (drawn(300, 24), B.t(), None),
    "gradient of a narrow weight": (drawn(300, 24).t(), A.t(), None),
    "gradient of a wide weight": (A.t(), drawn(300, 24).t(), None),
    "one row": (A[:1], B, None),
    "one column": (drawn(300, 1), drawn(5, 1), None),
    "no row": (A[:0], B, None),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_product_is_exact_and_its_second_operand_dense(form):
    """A second operand with gaps takes a thousand times as long."""
    a, b, bias = FORMS[form]
    with Operands() as operands:
        out = cpu.onednn_product(a, b, bias)
    exact = a.double() @ b.double().t() + (0 if bias is None else bias)
    assert out.is_contiguous()
    assert torch.allclose(out.double(), exact, rtol=0, atol=1e-5 * (a.size(1) + 1) ** 0.5)
    ((first, second, added),) = operands.seen
    assert second.is_contiguous() or second.t().is_contiguous()
    assert added is None or added.is_contiguous()
    if "weight" in form and form.startswith("gradient"):
        assert len(first) == 24, "the narrower operand is copied"


def test_relu_keeps_what_is_not_a_number(onednn):
    x = A.clone()
    x[3, 2] = float("nan")
    assert linear(x, B, relu=True)[3].isnan().all()


class Layers(nn.Module):
    """A layer that is read twice, one with gaps, one of three dimensions, a matrix, a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(9, 8), nn.Linear(8, 8)
        self.matrix, self.cell = nn.Parameter(drawn(8, 8)), nn.GRUCell(8, 8)
        self.head = nn.Linear(16, 1)
        self.second.weight.requires_grad_(False)

    def forward(self, x, batch):
        h = F.relu(self.first(x))
        h = self.second(h) + F.linear(h, self.head.weight[:, :8].expand(8, 8)) + h
        turned = self.second(torch.stack([h, -h], 1)).tanh().sum(1)
        h = self.cell(turned @ self.matrix, h.tanh())
        return self.head(global_add_pool(torch.cat([h, h * h], 1), batch))


def test_layers_by_onednn_train_as_in_plain_pyg(onednn, esol, monkeypatch):
    model = Layers()
    plain = copy.deepcopy(model)
    graphs = esol[:24]
    for graph in graphs:
        graph.x = graph.x.float() / 8
    plan = sg.plan_stream(graphs, batch_size=24)
    runner = sgd_runner(model, plan, "fused")
    products = Mock(side_effect=cpu.onednn_product)
    monkeypatch.setattr(op, "onednn_product", products)
    batch = sg.Padder(plan)(graphs)
    runner.step(batch)
    products.reset_mock()
    loss = runner.step(batch)
    assert fired(runner)["linear"] == 7
    needless = 1 + 2  # the gradients of the features, and of a fixed weight that is read twice
    assert products.call_count == 3 * 8 - needless
    rows, labels = batch.graph_mask, batch.y
    expected = (plain(batch.x, batch.batch)[rows] - labels[rows]).square().mean()
    expected.backward()
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert_same_gradients(model, plain, rtol=1e-4, atol=1e-5)


def test_the_library_that_is_faster_is_taken(monkeypatch):
    product = cpu.onednn_product
    size = 2048, 64, 64

    def gains(onednn_product) -> tuple[bool, bool]:
        monkeypatch.setattr(cpu, "onednn_product", onednn_product)
        cpu._gains.cache_clear()
        assert cpu.onednn_gains(*size) == cpu._gains(torch.get_num_threads(), *size[1:])[0]
        return cpu._gains(torch.get_num_threads(), *size[1:])

    def slow_for_weights(a, b):
        return [product(a, b) for _ in range(40)] if len(a) == 64 else None

    assert gains(slow_for_weights) == (True, False)
    assert cpu.onednn_gains(2048, 64, 16, of_weight=True), "other widths are timed by themselves"
    assert gains(lambda a, b: None) == (True, True)
    assert not cpu.onednn_gains(64, 64, 64), "torch's overhead is smaller"
    with torch.backends.mkldnn.flags(enabled=False):
        assert not cpu.onednn_gains(*size)
        assert not cpu.onednn_gains(*size, of_weight=True)
    assert gains(lambda a, b: [product(a, b) for _ in range(40)]) == (False, False)
    cpu._gains.cache_clear()
