"""Max, softmax and attention on CUDA: the references' results, the same bits, as many launches as
are counted for them."""

from __future__ import annotations

import copy

import pytest
import torch
from support.fused_models import BATCH, LAYERS, call
from support.parity import CAPACITY

import staticgraph as sg
from staticgraph.dryrun.operations import OperationCounter, kernels_on_cuda
from staticgraph.kernels import (
    gcn_degrees,
    gcn_sum,
    neighbour_attention,
    neighbour_max,
    pair_score,
    segment_max,
    segment_softmax,
)

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
NODES, EDGES, GRAPHS, HEADS, WIDTH = 3000, 7000, 128, 4, 16


def where(device: str) -> tuple[torch.Tensor, ...]:
    """Both ends of the edges and their pointers, as a static batch has them."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(NODES, (EDGES,), generator=generator)
    dst = torch.randint(NODES, (EDGES,), generator=generator).sort().values
    everything = torch.arange(NODES + 1)
    transpose = torch.argsort(src, stable=True)
    pointers = (
        torch.searchsorted(dst, everything).int(),
        torch.searchsorted(src[transpose].contiguous(), everything).int(),
        transpose.int(),
    )
    return tuple(value.to(device) for value in (src, dst, *pointers))


def operands(dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "x": (NODES, HEADS * WIDTH),
        "right": (NODES, HEADS * WIDTH),
        "rows": (EDGES, HEADS * WIDTH),
        "pair": (HEADS, NODES, 2),
        "edge": (EDGES, HEADS),
        "own": (NODES, HEADS),
        "weight": (HEADS, WIDTH),
        "bias": (HEADS * WIDTH,),
    }
    return {
        name: torch.randn(shape, generator=generator).to(dtype).to(device).requires_grad_()
        for name, shape in shapes.items()
    }


def segments(device: str) -> torch.Tensor:
    return torch.linspace(0, NODES, GRAPHS + 1).long().to(device)


def summed(v: dict[str, torch.Tensor], edges: tuple[torch.Tensor, ...], _: object) -> torch.Tensor:
    root, own = gcn_degrees(edges[0], edges[2], None, 1.0, True, v["x"].detach())
    return gcn_sum(v["x"], root, own, *edges, bias=v["bias"])


def attended(
    v: dict[str, torch.Tensor], edges: tuple[torch.Tensor, ...], _: object
) -> torch.Tensor:
    scores = {name: v[name] for name in ("pair", "edge", "own")}
    return neighbour_attention(v["x"], *edges, heads=HEADS, slope=0.2, **scores)


def scored(v: dict[str, torch.Tensor], edges: tuple[torch.Tensor, ...], _: object) -> torch.Tensor:
    score = pair_score(v["x"], v["right"], v["weight"], *edges, edge=v["rows"], slope=0.2)
    return torch.cat(score)


# The operands, the edges, and where each graph's nodes begin.
KERNELS = {
    "segment_max": lambda v, _, ptr: segment_max(v["x"], ptr),
    "segment_softmax": lambda v, _, ptr: segment_softmax(v["x"], ptr),
    "neighbour_max": lambda v, edges, _: neighbour_max(v["x"], v["rows"], *edges),
    "gcn_sum": summed,
    "neighbour_attention": attended,
    "pair_score": scored,
}


def step(name: str, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Result and gradients, from the same numbers on every device."""
    values = operands(dtype, device)
    out = KERNELS[name](values, where(device), segments(device))
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    out.backward(grad)
    return [out.detach(), *(v.grad for v in values.values() if v.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_equals_the_cpus_and_itself(name, dtype):
    """The CPU's are tested against the references; here sums of at most a hundred terms differ in
    their order alone, and a gradient of attention in how the result was rounded."""
    found, again, expected = (step(name, dtype, device) for device in (DEVICE, DEVICE, "cpu"))
    for one, two, right in zip(found, again, expected, strict=True):
        assert torch.equal(one, two), "not the same bits twice"
        scale = float(right.abs().max()) + 1e-30
        bound = 4 * torch.finfo(dtype).eps + 1000 * torch.finfo(torch.float32).eps
        assert float((one.cpu().double() - right.double()).abs().max()) <= bound * scale


@pytest.mark.parametrize("name", KERNELS)
def test_as_many_launches_as_are_counted(name):
    """Forward and back with all inputs ready; torch's own sum over the nodes may take two."""
    values, edges, ptr = operands(torch.float32, DEVICE), where(DEVICE), segments(DEVICE)
    grad = torch.ones_like(KERNELS[name](values, edges, ptr))

    def forward_and_back() -> None:
        out = KERNELS[name](values, edges, ptr)
        torch.autograd.grad(out, list(values.values()), grad, allow_unused=True)

    with OperationCounter() as counter:
        forward_and_back()
    counted = counter.operations.launches
    assert counted <= kernels_on_cuda(forward_and_back) <= counted + 1


@pytest.mark.parametrize("name", ["gcn weighted", "gat edges", "gatv2", "sage max", "gine max"])
def test_a_converted_layer_trains_as_on_the_cpu(name):
    torch.manual_seed(0)
    stock = LAYERS[name]()
    results = []
    for device in ("cpu", DEVICE):
        model = sg.convert(copy.deepcopy(stock), kernels=True).to(device)
        batch = BATCH.to(device)
        runner = sg.StaticGraphRunner(model, [CAPACITY], forward=call)
        out = runner(batch)[batch.graph_mask]
        out.square().sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results.append([out.detach().cpu(), *gradients])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9 * float(a.abs().max() + 1))
