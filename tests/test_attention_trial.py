"""``auto`` times the attention paths that counting cannot tell apart: which paths, when, and what
all ways of a bucket take over from it. A CPU stands in for a device that has the kernels."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from support.gine_net import CAPACITIES, batches_of, bce
from support.runners import made_runner
from support.tape import TapeRecorder

import staticgraph as sg
from staticgraph import models
from staticgraph.runner.auto import Auto, Stopwatch
from staticgraph.sizes.attention import AttentionSetting

CUDA = AttentionSetting("cuda", "float32", 16)


class Given(Stopwatch):
    """A stopwatch that returns given times and notes the ways that it was asked to time. It runs a
    step for real the first time that its way is timed; that a timed step is undone is tested with
    the choice of ways."""

    table: ClassVar[dict[str, float]] = {}
    asked: ClassVar[list[str]] = []

    def milliseconds(self, way, step):
        if way not in self.asked:
            step()
        if self.asked[-1:] != [way]:
            self.asked.append(way)
        return self.table[way]


def watch(**table) -> type[Given]:
    made = {"eager": 3.0, "cuda-graph": 1.0} | {
        name.replace("_", "-"): float(value) for name, value in table.items()
    }
    return type("Told", (Given,), {"table": made, "asked": []})


@pytest.fixture
def _kernels(monkeypatch):
    """Varlen attention as on a device that has its kernels; everything else as on a CPU."""
    stock = AttentionSetting.discourages
    monkeypatch.setattr(
        AttentionSetting, "discourages", lambda s, path: "" if path == "varlen" else stock(s, path)
    )


def gps_runner(hiv, stopwatch, dropout=0.0, kernels=False, layers=1, **options):
    torch.manual_seed(0)
    model = models.build("gps", hiv, hidden=16, layers=layers, heads=2)
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = dropout
    if options.pop("asked", ""):
        sg.convert(model, attention="dense")
    elif kernels:
        sg.convert(model, kernels=True)
    return made_runner(
        model,
        CAPACITIES[:1],
        Auto(ways=("eager", "cuda-graph"), rounds=5, on_cpu=True, stopwatch=stopwatch),
        loss=bce,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        recorder=TapeRecorder,
    )


def chosen(runner) -> dict[str, str]:
    return {c.phase: c.way for c in runner.report().choices if c.of_attention}


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("fastest", ["varlen", "dense"])
@pytest.mark.parametrize("kernels", [False, True])
def test_the_faster_path_is_what_every_way_takes(hiv, fastest, kernels):
    """Whatever the counts say: dense has 33 blocks of 222 by 222 places, varlen a few tiles."""
    stopwatch = watch(**{"dense": 4, "size_classed": 4, "varlen": 4} | {fastest: 1})
    if fastest == "dense":
        stopwatch.table["size-classed"] = 1.0
    options = {"kernels": kernels, "layers": 2}
    runner = gps_runner(hiv, stopwatch, **options).warmup(hiv, progress=False)
    other = next(name for name in stopwatch.asked if name not in ("eager", "cuda-graph"))
    expected = "varlen" if fastest == "varlen" else other
    assert chosen(runner) == {"attention in step": expected, "attention in eval": expected}
    assert set(stopwatch.asked[:2]) == {other, "varlen"}, "before the ways of the bucket"
    (row,) = runner.report().attention
    assert (row.path, len(row.layers)) == (expected, 2)
    assert row.reason.startswith("auto, by time")
    text = str(runner.report())
    assert f"choice: bucket 0 attention in step: {expected}, " in text
    batch = sg.StaticBatch.of(hiv, range(30), runner.plan.capacities[0], pointers=kernels)
    loss = runner.step(batch)
    reference = gps_runner(hiv, stopwatch, **options)
    torch.testing.assert_close(loss, reference.eager_step(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_kernels")
def test_where_training_drops_weights_evaluation_alone_has_a_choice(hiv):
    runner = gps_runner(hiv, watch(dense=2, size_classed=2, varlen=1), dropout=0.5)
    runner.warmup(hiv, progress=False)
    assert chosen(runner) == {"attention in eval": "varlen"}
    batch = batches_of(hiv, 1)[0]
    runner.step(batch)
    runner.eval_step(batch)


def test_nothing_is_timed_where_there_is_no_choice(hiv):
    """On a CPU, and wherever a path was requested."""
    assert chosen(gps_runner(hiv, watch()).warmup(hiv, progress=False)) == {}
    runner = gps_runner(hiv, watch(), asked="dense").warmup(hiv, progress=False)
    assert chosen(runner) == {}


@pytest.mark.usefixtures("_kernels")
def test_a_second_warm_up_times_nothing_anew(hiv):
    """Compiled code contains the path, so another choice would no longer match it."""
    stopwatch = watch(dense=2, size_classed=2, varlen=1)
    runner = gps_runner(hiv, stopwatch).warmup(hiv, progress=False)
    stopwatch.asked.clear()
    runner.warmup(hiv, progress=False)
    assert set(stopwatch.asked) == {"eager", "cuda-graph"}
    assert runner.report().attention[0].path == "varlen"


@pytest.mark.usefixtures("_kernels")
def test_a_path_without_room_is_refused_and_costs_the_other_nothing(hiv):
    class Hungry(watch(dense=4, size_classed=4)):
        def milliseconds(self, way, step):
            if way == "varlen":
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().milliseconds(way, step)

    runner = gps_runner(hiv, Hungry).warmup(hiv, progress=False)
    assert set(chosen(runner).values()) <= {"dense", "size-classed"}
    assert "varlen refused (ran out of memory" in str(runner.report())
