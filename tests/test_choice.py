"""``mode="auto"``: what is chosen from given times, and that timing changes nothing else."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from typing import ClassVar

import pytest
import torch
from support.alike import assert_same_state, same, sgd
from support.arena import ArenaRecorder
from support.gine_net import CAPACITIES, Net, adam, batches_of, bce, eager_of, fixed
from support.places import AsTraced
from support.runners import made_runner

import staticgraph as sg
from staticgraph.files import jit_cache
from staticgraph.recording.graph_recorder import Recorded
from staticgraph.runner.report import Report
from staticgraph.runner.trials import Trials
from staticgraph.runner.way_choice import choose
from staticgraph.runner.ways import Auto, Stopwatch

EAGER_OR_RECORDED = ("eager", "cuda-graph")


class TestFromTimes:
    """The rule by itself, against cases worked out by hand."""

    @pytest.mark.parametrize(
        ("times", "expected"),
        [
            ({"eager": [10] * 8, "default": [10] * 8, "cuda-graph": [10] * 8}, "eager"),
            ({"eager": [10] * 8, "default": [9.9] * 8, "cuda-graph": [9.8] * 8}, "eager"),
            ({"eager": [10] * 8, "default": [5] * 8, "cuda-graph": [2] * 8}, "cuda-graph"),
            ({"eager": [10] * 8, "default": [5] * 8, "cuda-graph": [4.9] * 8}, "default"),
            ({"eager": [10] * 8, "default": [20] * 8, "cuda-graph": [5] * 8}, "cuda-graph"),
            # Other load made eager slow in half of its rounds: default is ahead in the median only.
            ({"eager": [10, 30] * 4, "default": [11] * 8}, "eager"),
            # Other load made most rounds of eager many times as long, and fused was always ahead.
            ({"eager": [20, 60, 24, 200, 22, 90], "fused": [10, 12, 11, 12, 10, 11]}, "fused"),
            # Ahead in six rounds of eight, as one of seven coins is.
            ({"eager": [9, 12, 13, 12, 9, 13, 12, 14], "fused": [11] * 8}, "eager"),
            ({"eager": [3] * 5}, "eager"),
        ],
    )
    def test_a_way_must_earn_its_place(self, times, expected):
        assert choose(0, "step", times).way == expected


class Given(Stopwatch):
    """A stopwatch that runs the step and returns a given time; its clock counts the steps."""

    table: ClassVar[dict[str, float]] = {}
    seconds = 0.0

    def now(self):
        return self.seconds

    def milliseconds(self, way, step):
        step()
        self.seconds += 1
        return self.table[way]


def watch(**table):
    made = {name.replace("_", "-"): value for name, value in table.items()}
    return type("Told", (Given,), {"table": made})


def auto(model, hiv, optimizer=None, warm=True, capacities=CAPACITIES, **options):
    choosing = {"ways": EAGER_OR_RECORDED, "rounds": 5, "stopwatch": watch(eager=3, cuda_graph=1)}
    choosing |= options.pop("choosing", {}) | {"on_cpu": True}
    runner = made_runner(
        model,
        capacities,
        Auto(**choosing),
        loss=bce,
        optimizer=optimizer or adam(model),
        recorder=options.pop("recorder", ArenaRecorder),
        **options,
    )
    return runner.warmup(hiv) if warm else runner


def ways(runner):
    return {(c.bucket, c.phase): c.way for c in runner.report().choices}


class Mixed(Given):
    """Bucket 1 is timed before bucket 0, and step before eval: only the first is recorded."""

    def milliseconds(self, way, step):
        step()
        self.seconds += 1
        first = self.seconds <= 2 * 7  # two ways, 2 + 5 rounds: bucket 1's training step
        return {"eager": 3.0, "cuda-graph": 1.0 if first else 3.0}[way]


@pytest.mark.parametrize(
    ("stopwatch", "recorded"), [(Mixed, 1), (watch(eager=3, cuda_graph=1), 4), (None, None)]
)
def test_whatever_is_chosen_the_steps_are_those_of_eager(hiv, stopwatch, recorded):
    """Ten steps over two buckets, bit for bit, and the same optimizer state after warm-up."""
    model = Net(dropout=0.5)
    twin = copy.deepcopy(model)
    optimizer, other = adam(model), adam(twin)
    random = torch.get_rng_state()
    runner = auto(model, hiv, optimizer, choosing={"stopwatch": stopwatch or Stopwatch})
    assert torch.equal(random, torch.get_rng_state())
    if recorded is not None:
        assert sum(way == "cuda-graph" for way in ways(runner).values()) == recorded
    eager = eager_of(twin, other)
    for step, batch in enumerate(batches_of(hiv, 10)):
        batch = fixed(batch)  # eager over the same physical rows as a recording
        torch.manual_seed(step)
        ours = runner.step(batch)
        torch.manual_seed(step)
        assert torch.equal(ours, eager.step(batch)), step
    assert_same_state(model, twin)


def test_the_choice_and_its_numbers_are_in_the_report(hiv, tmp_path):
    runner = auto(Net(), hiv, choosing={"stopwatch": Mixed})
    report = runner.report()
    assert [(c.bucket, c.phase, c.way) for c in report.choices] == [
        (0, "eval", "eager"),
        (0, "step", "eager"),
        (1, "eval", "eager"),
        (1, "step", "cuda-graph"),
    ]
    text = str(report)
    assert "mode auto (chosen by time, see below)" in text
    assert (
        "choice: bucket 1 step: cuda-graph, 3.00 times as fast as eager, in 100% of the rounds: "
        "eager 3 ms (3 to 3); cuda-graph 1 ms (1 to 1)" in text
    )
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report


class OverEdges(Net):
    def forward(self, x, edge_index, edge_attr, batch):
        least = 0 * edge_attr.min().float()  # of no edges there is none
        return super().forward(x, edge_index, edge_attr, batch) + least


def test_a_model_that_does_not_run_without_rows_is_chosen_for_all_the_same(hiv):
    assert set(ways(auto(OverEdges(), hiv)).values()) == {"cuda-graph"}


def test_a_tie_is_run_as_simply_as_can_be(hiv):
    """A device that is busy anyway gains nothing: everything stays eager, and nothing is held."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    runner = auto(model, hiv, optimizer, choosing={"stopwatch": watch(eager=3, cuda_graph=3)})
    assert set(ways(runner).values()) == {"eager"}
    assert runner.steps.recorded is None
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_warming_up_leaves_no_trace_in_an_optimizer(hiv):
    """Adagrad's sums start at a value other than zero, so they must be as if no step was made."""
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    before = copy.deepcopy(optimizer.state_dict())
    auto(model, hiv, optimizer)
    assert same(optimizer.state_dict()["state"], before["state"])
    lazy = sgd(model, 0.1, momentum=0.9, dampening=0.5)
    auto(model, hiv, lazy)
    assert not lazy.state, "a buffer of zeros is not the same as none, with dampening"


class Fails(ArenaRecorder):
    """Cannot record its third key."""

    def record(self, body):
        if self.recorded == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().record(body)


def test_one_failed_recording_takes_all_with_it(hiv):
    model = Net()
    twin = copy.deepcopy(model)
    runner = auto(model, hiv, recorder=Fails)
    assert set(ways(runner).values()) == {"eager"}
    refused = [c.refused for made in runner.report().choices for c in made.contenders if c.refused]
    assert len(refused) == 4
    assert all("not permitted when stream is capturing" in why for why in refused)
    eager = eager_of(twin, adam(twin))
    for batch in batches_of(hiv, 4):
        assert torch.allclose(runner.step(batch), eager.step(fixed(batch)), rtol=1e-6)


def test_the_limit_is_kept(hiv):
    """The clock counts 21 steps per training key: after 30, only the simplest way is started."""
    runner = auto(Net(), hiv, choosing={"limit_s": 30})
    made = runner.report().choices
    assert [choice.way for choice in made] == ["eager", "eager", "cuda-graph", "cuda-graph"]
    assert "cuda-graph not tried: limit_s=30 was spent" in str(made[0])
    assert [c.rounds for c in made[0].contenders] == [5, 0]


def test_compiled_is_a_contender(hiv, monkeypatch):
    """The compiled and the recorded way share one function, so nothing is compiled twice."""
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", AsTraced)

    class Compiling(ArenaRecorder):
        """Repeats the work itself: under a tape's dispatch mode torch compiles nothing."""

        compiles = True

        def record(self, body):
            result = body()
            self.recorded += 1
            return Recorded(lambda: result.copy_(body()), result)

    stopwatch = watch(eager=3, default=1, cuda_graph=2)
    options = {"ways": ("eager", "default", "cuda-graph"), "stopwatch": stopwatch}
    used = CAPACITIES if os.environ.get("EVERY_CASE") else CAPACITIES[:1]
    runner = auto(Net(), hiv, capacities=used, choosing=options, recorder=Compiling)
    assert set(ways(runner).values()) == {"default"}
    for batch in batches_of(hiv, 4):
        if batch.bucket < len(used):
            runner.step(batch)
            runner.eval_step(batch)
    report = runner.report()
    assert [(b.compiles, b.late_compiles) for b in report.buckets] == [(2, 0)] * len(used)
    slower = options | {"stopwatch": watch(eager=3, default=4)}
    one = auto(Net(), hiv, capacities=used, recorder=None, choosing=slower)
    assert set(ways(one).values()) == {"eager"}, "without a recorder, two contenders"


@pytest.mark.parametrize("cached", [True, False])
def test_what_the_steps_to_come_cannot_earn_back_is_not_tried(hiv, cached, monkeypatch):
    """40 steps of 100 ms save 2.4 s at most; rewriting takes 2, a kernel's first compilation 20."""
    monkeypatch.setattr(jit_cache, "holds_kernels", lambda: cached)
    choosing = {"ways": ("eager", "fused"), "stopwatch": watch(eager=100, fused=50)}
    runner = auto(Net(), hiv, capacities=CAPACITIES[:1], warm=False, choosing=choosing)
    runner.warmup(hiv, phases=("step",), steps=40)
    assert ways(runner) == {(0, "step"): "fused" if cached else "eager"}
    assert cached or "40 steps of 100 ms cannot earn back 20 s" in str(runner.report().choices[0])


class Counting(Net):
    """Counts its steps, which each makes the next step differ, and the evaluation after it."""

    forwards = 0

    def forward(self, x, edge_index, edge_attr, batch):
        self.forwards += self.training
        return super().forward(x, edge_index, edge_attr, batch) / (1 + self.forwards)


def test_a_compiled_step_that_holds_once_is_refused_and_an_evaluation_like_it(hiv):
    choosing = {"ways": ("eager", "fused"), "stopwatch": watch(eager=3, fused=1)}
    runner = auto(Counting(), hiv, capacities=CAPACITIES[:2], choosing=choosing)
    assert runner.subject.model.forwards == 0
    assert set(ways(runner).values()) == {"eager"}
    for choice in runner.report().choices:  # known from the first bucket that was timed
        assert "model.forwards == " in choice.contenders[1].refused
    steps = [c.contenders[1].refused for c in runner.report().choices if c.phase == "step"]
    assert len(set(steps)) == 1
    runner.step(next(iter(batches_of(hiv, 1))))
    assert len(runner.predict([hiv[0]])) == 1


class Never(Stopwatch):
    def milliseconds(self, way, step):
        raise AssertionError("measured again")


def test_choices_are_kept_in_a_file_and_taken_from_it(hiv, tmp_path):
    file = tmp_path / "choices.json"
    first = auto(Net(), hiv, warm=False, choosing={"stopwatch": Mixed})
    first.warmup(hiv, choices=file)
    second = auto(Net(), hiv, warm=False, choosing={"stopwatch": Never})
    second.warmup(hiv, choices=file)
    assert second.report().choices == first.report().choices
    assert [bucket.recordings for bucket in second.report().buckets] == [0, 1]
    second.step(batches_of(hiv, 2)[1])
    document = json.loads(file.read_text())
    document["made_for"]["torch"] = "1.0"
    file.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match=r"holds no choices: .*it was changed.*measuring again"):
        auto(Net(), hiv, warm=False).warmup(hiv, choices=file)
    document.pop("checksum")  # as the message suggests for a change that is meant
    file.write_text(json.dumps(document))
    third = auto(Net(), hiv, warm=False)
    with pytest.warns(UserWarning, match=r"made for another torch: .*1\.0.*measuring again"):
        third.warmup(hiv, choices=file)
    assert set(ways(third).values()) == {"cuda-graph"}
    file.write_text("nothing")
    with pytest.warns(UserWarning, match="holds no choices"):
        auto(Net(), hiv, warm=False).warmup(hiv, choices=file)


def test_without_being_told_a_cpu_compiles_nothing(hiv):
    runner = sg.StaticGraphRunner(Net(), CAPACITIES, loss=bce).warmup(hiv)
    assert runner.mode.name == "eager"
    for choice in runner.report().choices:
        assert {contender.way for contender in choice.contenders} == {"eager", "fused"}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("planned", [True, False], ids=["by the plan's store", "by first batches"])
def test_a_bare_warmup_measures_with_real_graphs(hiv, planned, monkeypatch):
    """Never a bucket of padding alone; the steps are those of eager, whichever way is chosen."""
    plan = sg.plan_buckets(hiv, batch_size=16)
    plan = plan if planned else dataclasses.replace(plan, source=type(None))
    timed, run = [], Trials._run

    def noted(self, way, batch, phase):
        if batch.bucket >= 0:
            timed.append((way, phase, int(batch.graph_mask.sum())))
        run(self, way, batch, phase)

    model = Net()
    twin = copy.deepcopy(model)
    optimizer, other = adam(model), adam(twin)
    stopwatch = watch(eager=3, fused=1)
    runner = sg.StaticGraphRunner(
        model, plan, Auto(stopwatch=stopwatch, rounds=5), loss=bce, optimizer=optimizer
    )
    monkeypatch.setattr(Trials, "_run", noted)
    runner.warmup()
    assert bool(runner.report().choices) == planned
    timed = [] if not planned else timed
    eager = sg.StaticGraphRunner(twin, plan, "eager", loss=bce, optimizer=other)
    ways_run = []
    for batch in runner.loader(hiv, indices=range(48)):
        torch.testing.assert_close(runner.step(batch), eager.step(batch), rtol=1e-5, atol=1e-6)
        ways_run.append(ways(runner)[0, "step"])
    runner.eval_step(batch)
    assert ways(runner) == {(0, "step"): "fused", (0, "eval"): "fused"}
    assert set(ways_run) == {"fused"}
    assert {way for way, _, _ in timed} == {"eager", "fused"}
    assert all(graphs for _, _, graphs in timed)


def test_options_are_checked():
    with pytest.raises(ValueError, match="eager first"):
        Auto(ways=("default",))
    with pytest.raises(ValueError, match="at least 5"):
        Auto(rounds=1)


def test_the_reason_of_a_refused_way_is_printed():
    """It follows a colon, on the second line of an error of several."""
    refused = {"fused": "bucket 0 cannot be compiled:\n  no sparse tensors\nuse eager"}
    printed = str(choose(0, "step", {"eager": [1.0, 1.0]}, refused))
    assert "fused refused (bucket 0 cannot be compiled: no sparse tensors)" in printed
