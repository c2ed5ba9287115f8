"""The attention paths on a GPU: each compiled, recorded, and equal to dense in float32; the same
test bodies on the CPU, as far as it has the paths."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.attending import batch_of
from support.places import DEVICES
from torch import nn
from torch_geometric.nn import GPSConv, global_add_pool

import staticgraph as sg
from staticgraph.kernels.graph_attention import graph_attention

CAPACITY = sg.Capacity(700, 20, 14, 160)
SIZES = ([160, 3, 8, 1, 17, 50, 9, 2, 90], [30, 31, 7], [128, 128, 60, 1])
# Sums of 160 products in another order, in float32: about 1e-6 of the largest; TF32 is off.
TOLERANCE = 1e-4


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 64)
        self.layers = nn.ModuleList(GPSConv(64, None, heads=4, norm=None) for _ in range(2))
        self.head = nn.Linear(64, 2)

    def forward(self, x, batch):
        h = self.wide(x)
        for layer in self.layers:
            h = layer(h, None, batch)
        return self.head(global_add_pool(h, batch))


def loss(out, batch):
    return (out - batch.y).square()


PATHS = ["dense", "auto"]
# On a CPU torch records nothing and both compiled modes run the same code: once per path.
TRAINED = [
    *((DEVICES[0], path, mode) for path in PATHS for mode in ("default", "reduce-overhead")),
    *(("cpu", path, "default") for path in PATHS),
    *((device, path, "cuda-graph") for device in DEVICES for path in PATHS),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("place", "path", "mode"),
    [
        pytest.param(getattr(d, "values", (d,))[0], path, mode, marks=getattr(d, "marks", ()))
        for d, path, mode in TRAINED
    ],
    indirect=["place"],
)
def test_training_by_each_path_equals_dense(place, path, mode):
    """Losses and weights after six steps over batches of different shapes in one bucket, with a
    plain SGD, which the runner makes recordable."""
    torch.manual_seed(0)
    model = Attending().to(place.device)
    batches = [batch_of(sizes, CAPACITY, np.float32).to(place.device) for sizes in SIZES]
    recording = sg.Recording(recorder=place.recorder)

    def train(model, mode, path):
        sg.convert(model, attention=path)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        runner = sg.StaticGraphRunner(
            model, [CAPACITY], mode, loss=loss, optimizer=optimizer, recording=recording
        )
        runner.warmup(batches[0], progress=False)
        losses = torch.stack([runner.step(batches[i % 3]) for i in range(6)])
        assert runner.report().buckets[0].late_compiles == 0
        return losses, [p.detach().clone() for p in model.parameters()]

    expected, weights = train(copy.deepcopy(model), "eager", "dense")
    found, others = train(copy.deepcopy(model), mode, path)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=0)
    for a, b in zip(weights, others, strict=True):
        assert float((a - b).abs().max()) <= TOLERANCE * float(a.abs().max())


@pytest.mark.slow  # on a fresh clone, for what its cases compile
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_equal_a_loop_over_graphs(sizes, dtype, device):
    """Both directions, at most twice as far from float64 as torch's own attention of that dtype."""
    torch.manual_seed(0)
    batch = batch_of(sizes, CAPACITY).to(device)
    starts = torch.minimum(batch.ptr, batch.num_real_nodes).int()
    real = sum(sizes)
    q, k, v, seed = torch.randn(4, 700, 4, 16, device=device, dtype=torch.float64)
    seed[real:] = 0

    def by_loop(dtype):
        rows = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        outs = [
            F.scaled_dot_product_attention(*(t[a:b].transpose(0, 1) for t in rows)).transpose(0, 1)
            for a, b in pairwise(ends)
        ]
        return rows, torch.cat(outs)

    def by_kernel(dtype):
        rows = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        packed = torch.stack(rows, 1).flatten(1)
        out = graph_attention(packed, starts, heads=4, longest=160)
        return rows, out.view(700, 4, 16)[:real]

    def results(attend, dtype):
        rows, out = attend(dtype)
        grads = torch.autograd.grad(out, rows, seed[:real].to(dtype))
        return [t[:real].detach().double() for t in (out, *grads)]

    exact = results(by_loop, torch.float64)
    usual = results(by_loop, dtype)
    for a, b, c in zip(exact, usual, results(by_kernel, dtype), strict=True):
        least = torch.finfo(dtype).eps * float(a.abs().max())
        assert float((c - a).abs().max()) <= 2 * max(least, float((b - a).abs().max()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("path", ["dense", "kernel"])
def test_memory_is_fitted_for_each_path(path, device, esol):
    """The probe finds the form; the kernel is not assumed to be quadratic in ``M``."""

    class Model(Attending):
        def forward(self, x, batch):
            return super().forward(x[:, :8].float(), batch)[:, :1]

    model = sg.convert(Model().to(device), attention=path)
    memory = sg.probe(
        model, esol, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3)
    )
    if path == "kernel":
        assert memory.fit.form == "linear"
    if device == "cpu":  # read from fake tensors, where no allocator rounds
        assert memory.fit.form == "linear"
        assert memory.checked is not None
        assert memory.fit.worst <= 0.01
