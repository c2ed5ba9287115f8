"""What torch's graph trees record is counted at the run that records, which is not the first."""

from __future__ import annotations

import pytest
import torch
from support.gine_net import CAPACITIES, Net, bce
from support.runners import sgd_runner

import staticgraph as sg
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.steps.compilation import graph_trees
from staticgraph.steps.compilation.compiled_steps import CompiledSteps

CUDA = torch.device("cuda", 0)


class Trees:
    """Stand-in that counts as torch's graph trees do: a key's function warms up at its first run
    and records at its second; a backward is made at the first backward and warms up once more.

    Attributes:
        partitions: number of pieces that a function is cut into.
        skips: whether backward functions are declined and not recorded.
    """

    def __init__(self, monkeypatch):
        self.nodes, self.runs, self.partitions, self.skips = 0, {}, 1, False
        self._skipped = 0
        monkeypatch.setattr(graph_trees, "recorded_graphs", lambda device: self.nodes)
        monkeypatch.setattr(graph_trees, "skipped_recordings", lambda: self._skipped)
        monkeypatch.setattr(
            "staticgraph.steps.compilation.compiled_function.skipped_recordings",
            lambda: self._skipped,
        )
        monkeypatch.setattr("torch._inductor.compile_fx.cudagraphify", lambda: None)

    def run(self, key, warm_runs):
        from torch._inductor import compile_fx

        ran = self.runs[key] = self.runs.get(key, 0) + 1
        if ran == 1:
            for _ in range(self.partitions):
                compile_fx.cudagraphify()
        if key[-1] == "backward" and self.skips:
            self._skipped += ran == 1
        elif ran == 1 + warm_runs:
            self.nodes += self.partitions


@pytest.fixture
def trees(monkeypatch):
    found = Trees(monkeypatch)

    def inductor(function, **options):
        return function

    monkeypatch.setattr(torch, "compile", inductor)

    def run(self, phase, batch, fused=False):
        function = self.find_function(phase, batch)
        key = (batch.bucket, phase, self._model.training)
        out = function(*batch.tensors().values())
        found.run((*key, "forward"), 1)
        if phase == "step":
            out.register_hook(lambda grad: found.run((*key, "backward"), 2))
        return out

    monkeypatch.setattr(CompiledSteps, "run", run)
    monkeypatch.setattr(StaticBatch, "to", lambda self, device: self)
    return found


def runner_of(hiv):
    model = Net()
    runner = sgd_runner(
        model,
        CAPACITIES,
        "reduce-overhead",
        loss=bce,
        rate=0.1,
        allow_cpu=True,
        check_padding=False,
    )
    runner.preparation._device = CUDA  # where the trees record
    return runner


def test_the_report_counts_the_runs_in_which_they_record(hiv, trees):
    """A forward and a backward per step, a forward per evaluation: three per bucket."""
    runner = runner_of(hiv).warmup(hiv)
    assert [bucket.recordings for bucket in runner.report().buckets] == [3, 3]
    assert not runner.report().fallbacks
    runner.warmup(hiv)
    assert [bucket.recordings for bucket in runner.report().buckets] == [3, 3], "made once"


def test_a_forward_of_the_callers_own_is_counted_though_its_backward_may_never_come(hiv, trees):
    runner = runner_of(hiv).warmup(hiv, phases=("forward", "eval"))
    assert [bucket.recordings for bucket in runner.report().buckets] == [2, 2]


def test_a_backward_that_is_declined_is_no_whole_recording(hiv, trees):
    trees.skips = True
    with pytest.raises(sg.NotStatic, match="torch recorded 1 of 2 pieces"):
        runner_of(hiv).warmup(hiv, phases=("step",))


def test_a_step_in_pieces_is_no_whole_recording(hiv, trees):
    trees.partitions = 2
    with pytest.raises(sg.NotStatic, match=r"bucket 1 step is not recorded whole.*4 of 4 pieces"):
        runner_of(hiv).warmup(hiv, phases=("step",))
