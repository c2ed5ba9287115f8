"""Hooks on a layer and its parts are called with kernels as without, or the layer is refused.

The oracle is plain PyG: how often it calls each hook on each module in one forward and backward.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.fused_models import BATCH, LAYERS, call
from support.parity import CAPACITY, WIDTH
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINConv, GPSConv, MessagePassing

import staticgraph as sg
from staticgraph.models.encoders import CategoryEncoder
from staticgraph.nn.fused import fused_layers

PLAIN = Batch.from_data_list(BATCH.to_data_list())
OF_MODULES = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)
OF_MESSAGES = tuple(
    f"register_{what}_forward{when}_hook"
    for what in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for when in ("", "_pre")
)


class Gps(nn.Module):
    """One GPS layer around GIN."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.first = GPSConv(WIDTH, GINConv(mlp), heads=2)
        self.double()

    def forward(self, x, edge_index, edge_attr, edge_weight, batch):
        return self.first(self.encoder(x), edge_index, batch)


MODELS = {"gps": Gps, **LAYERS}


def places(model: nn.Module) -> list[tuple[str, str]]:
    """Possible hooks on the first layer and its submodules: the module's path, the hook's kind."""
    return [
        (path, kind)
        for path, module in model.named_modules()
        if path.startswith("first")
        for kind in OF_MODULES + (OF_MESSAGES if isinstance(module, MessagePassing) else ())
    ]


def calls(model: nn.Module, path: str, kind: str, static: bool) -> int:
    """The number of calls of one hook in a forward and a backward."""
    model, count = copy.deepcopy(model), 0
    if static:
        model = sg.convert(model, kernels="all")

    def hook(*_):
        nonlocal count
        count += 1

    handle = getattr(model.get_submodule(path), kind)(hook)
    run = model
    if static:
        run = sg.StaticGraphRunner(
            sg.Subject(model, forward=call, check_padding=False), [CAPACITY], "eager"
        )
        run(BATCH)  # the first run is preceded by check runs
        count = 0
    out = run(BATCH) if static else call(model, PLAIN)
    out.sum().backward()
    handle.remove()
    return count


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_hook_is_called_as_in_plain_pyg(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    for path, kind in places(model):
        expected = calls(model, path, kind, static=False)
        if path == "first.attn" and expected:
            with pytest.raises(sg.NotStatic, match="attention has hooks"):
                calls(model, path, kind, static=True)
        elif expected:
            assert calls(model, path, kind, static=True) == expected, (path, kind)


@pytest.mark.parametrize("name", MODELS)
def test_without_hooks_the_layers_are_fused(name):
    """Otherwise the test above would compare stock code with itself."""
    model = sg.convert(MODELS[name](), kernels="all")
    sg.StaticGraphRunner(model, [CAPACITY], "eager", forward=call)(BATCH)
    reasons = {layer.name: layer.stock_reason for layer in fused_layers(model)}
    assert reasons["first"] is None


def test_hooks_of_an_encoders_tables_are_called():
    model = nn.Sequential(CategoryEncoder([3, 4], WIDTH))
    seen = []
    model[0].tables[1].register_forward_hook(lambda *_: seen.append(1))
    values = torch.zeros(BATCH.num_nodes, 2, dtype=torch.int64)
    fused = sg.convert(model, kernels="all")
    run = sg.StaticGraphRunner(fused, [CAPACITY], "eager", forward=lambda m, b: m(values))
    run(BATCH)
    assert seen
    assert "hooks" in fused[0].stock_reason
