"""Every operator on CUDA: the CPU's results and gradients, the same bits twice, as many launches as
the counter says; and layers that train as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from support.kernel_cases import CASES, DTYPES, NAMES, Sizes, operands, where
from support.kernel_results import far, kept_on, on_cpu, operator_calls, results
from support.layer_cases import CASES as LAYERS
from support.layer_model import model_of
from support.parity import BATCH, CAPACITY, call
from support.places import DEVICES

import staticgraph as sg
from staticgraph.dryrun.operations import OperationCounter, kernels_on_cuda
from staticgraph.kernels.register import CUDA

# Whose launches are all this library's own.
COUNTED = [f"neighbours{rest}" for rest in ("", " of GINE", " of graphs")]


def sizes_on(device: str, name: str) -> Sizes | None:
    """Smaller sizes on the CPU, which has no thread blocks to fill; None for the case's own."""
    return None if device == "cuda" or name == "graph_attention dropout" else Sizes(600, 1400, 26)


@pytest.mark.sampled(40)
@pytest.mark.slow  # with an empty cache, each compiles its own loops
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])  # the slowest: fp32 comes first
def test_an_operator_equals_the_cpus_and_itself(name, dtype, device):
    sizes = sizes_on(device, name)
    found, again = (results(name, dtype, device, sizes) for _ in range(2))
    for one, two in zip(found, again, strict=True):
        assert torch.equal(one, two), "not the same bits twice"
    wrong = far(found, *on_cpu(name, dtype, kept_on(name, device, sizes), sizes), dtype)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_registered_operator_has_a_case():
    """Found by what the cases call, forward and backward: each new operator needs a case."""
    calls = (operator_calls(name, torch.float32) for name in NAMES)
    called = {operator._opname for found in calls for operator in found}
    missing = sorted(CUDA.keys() - called)
    assert not missing, f"no case in tests/support/kernel_cases.py calls {', '.join(missing)}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", COUNTED)
def test_as_many_launches_as_are_counted(name, device):
    """Forward and backward with all inputs ready. The CPU rehearses it."""
    values, graphs = operands(Sizes(), torch.float32, device), where(Sizes(), device)
    grads = [torch.ones_like(out) for out in CASES[name](values, graphs)]

    def forward_and_back() -> None:
        outs = CASES[name](values, graphs)
        torch.autograd.grad(outs, list(values.values()), grads, allow_unused=True)

    with OperationCounter() as counter:
        forward_and_back()
    counted = counter.launches
    assert counted
    if device == "cuda":
        assert kernels_on_cuda(forward_and_back) == counted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "GATv2Conv", "SAGEConv max", "GINEConv"])
def test_a_converted_layer_trains_as_on_the_cpu(name, device):
    stock = model_of(next(case for case in LAYERS if case.name == name))
    runs = []
    for own in ("cpu", device):
        model = sg.convert(copy.deepcopy(stock), kernels=True).to(own)
        batch = BATCH.to(own)
        runner = sg.StaticGraphRunner(model, [CAPACITY], forward=call)
        out = runner(batch)[batch.graph_mask]
        out.square().sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        runs.append([out.detach().cpu(), *gradients])
    for a, b in zip(*runs, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9 * float(a.abs().max() + 1))
