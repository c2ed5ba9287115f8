"""The attention paths on a GPU: each compiled, recorded, and equal to dense in float32; the same
test bodies on the CPU, as far as it has the paths."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.alike import sgd
from support.attending import batch_of
from support.places import DEVICES
from torch import nn
from torch_geometric.nn import GPSConv, global_add_pool

import staticgraph as sg

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
    model = Attending().to(place.device)
    batches = [batch_of(sizes, CAPACITY, np.float32).to(place.device) for sizes in SIZES]
    recording = sg.Recording(recorder=place.recorder)

    def train(model, mode, path):
        sg.convert(model, attention=path)
        optimizer = sgd(model, 1e-4)
        runner = sg.StaticGraphRunner(
            model, [CAPACITY], mode, loss=loss, optimizer=optimizer, recording=recording
        )
        runner.warmup(batches[0])
        losses = torch.stack([runner.step(batches[i % 3]) for i in range(6)])
        assert runner.report().buckets[0].late_compiles == 0
        return losses, [p.detach().clone() for p in model.parameters()]

    expected, weights = train(copy.deepcopy(model), "eager", "dense")
    found, others = train(copy.deepcopy(model), mode, path)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=0)
    for a, b in zip(weights, others, strict=True):
        assert float((a - b).abs().max()) <= TOLERANCE * float(a.abs().max())
