"""Training settings other than model and size: schedule, accumulation, clipping, autocast, early
stopping, a model by name, a settings file."""

from __future__ import annotations

import math
import sys
import tomllib
from dataclasses import asdict

import pytest
import torch
from support.command import printed_json, refusal, status_of, write_module
from support.trained_run import SMALL, losses_of, trained

import staticgraph as sg
from staticgraph.errors import CheckpointCorrupt
from staticgraph.runner.ways import Auto
from staticgraph.steps.compilation.modes import FUSED
from staticgraph.training import train
from staticgraph.training.build_run import mode_of
from staticgraph.training.checkpoint import Trained
from staticgraph.training.config import TrainConfig, factor
from staticgraph.training.run import Training

OWN = """\
from staticgraph import models


def build(store):
    return models.build("gin", store, hidden=8, layers=1)
"""


# With a buffer that is infinite on purpose, and state that is no tensor.
STATEFUL = """\
import torch
from staticgraph import models


class Least(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("least", torch.tensor(torch.inf))

    def get_extra_state(self):
        return {"name": "least"}

    def set_extra_state(self, state):
        assert state == {"name": "least"}


def build(store):
    model = models.build("gin", store, hidden=8, layers=1)
    model.least = Least()
    return model
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory, esol) -> str:
    few = sg.GraphStore.from_pyg(esol[:110], name="few", progress=False)
    path = tmp_path_factory.mktemp("data") / "few"
    few.with_splits(train=range(80), val=range(80, 95), test=range(95, 110)).save(path)
    return str(path)


# ---------------------------------------------------------------------- schedules


def test_schedules_go_as_they_say():
    assert [factor("constant", n, 10, ()) for n in (0, 9)] == [1.0, 1.0]
    assert [factor("linear", n, 10, ()) for n in (0, 5)] == [1.0, 0.5]
    assert factor("cosine", 5, 10, ()) == pytest.approx(0.5)
    assert factor("cosine", 0, 10, ()) == 1.0
    rise = [factor("warmup-cosine", n, 100, ()) for n in range(11)]
    assert rise == pytest.approx([0.1 * (n + 1) for n in range(10)] + [1.0])
    assert factor("warmup-cosine", 99, 100, ()) < 0.001
    still = [1.0, 2.0, 2.0, math.nan, None, 2.0]  # five epochs without a lower loss
    assert factor("plateau", 0, 10, still[:-1]) == 1.0
    assert factor("plateau", 0, 10, still) == 0.5
    assert factor("plateau", 0, 10, [*still, 0.5, 0.4]) == 0.5
    assert factor("plateau", 0, 10, [1.0] + [2.0] * 10) == 0.25


def test_each_step_has_the_rate_of_its_number(data, tmp_path, monkeypatch):
    rates = []

    def seen(training: Training, number: int) -> None:
        set_rate(training, number)
        rates.append(float(training.optimizer.param_groups[0]["lr"]))

    set_rate = Training._set_rate
    monkeypatch.setattr(Training, "_set_rate", seen)
    trained(data, tmp_path / "r", schedule="linear", epochs=2, lr=0.01)
    assert rates == pytest.approx([0.01 * (1 - n / 10) for n in range(10)])


def test_a_schedule_with_an_end_goes_on_with_the_same_end_alone(data, tmp_path):
    trained(data, tmp_path / "r", schedule="cosine", epochs=1)
    with pytest.raises(ValueError, match="schedule='cosine' over 1 epoch, which ends with them"):
        train.resume(tmp_path / "r", {"epochs": 2}, progress=False)
    train.resume(tmp_path / "r", {"epochs": 1}, progress=False)


# ---------------------------------------------------------------------- updates


def test_settings_reach_the_step(data, tmp_path):
    config = TrainConfig(data, **SMALL, accumulate=2, clip_norm=0.5, autocast="bfloat16")
    subject = Training(config, tmp_path / "x", False).runner.subject
    found = subject.accumulate, subject.clip_norm, subject.autocast
    assert found == (2, 0.5, torch.bfloat16)


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_accumulates_goes_on_where_it_stopped(every, data, tmp_path, monkeypatch):
    """Also between two updates: the checkpoint holds the pending gradients."""
    settings = {"epochs": 2, "accumulate": 3, "checkpoint_every": every, "lr": 0.05}
    trained(data, tmp_path / "whole", **settings)

    class Stop:
        def __init__(self) -> None:
            self.asked = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        @property
        def requested(self) -> bool:
            self.asked += 1
            return self.asked > 6  # in the second epoch, one batch after an update

    with monkeypatch.context() as patch:
        patch.setattr("staticgraph.training.run.Interrupt", Stop)
        with pytest.raises(train.Interrupted):
            trained(data, tmp_path / "cut", **settings)
    train.resume(tmp_path / "cut", progress=False)
    assert losses_of(tmp_path / "cut") == losses_of(tmp_path / "whole")


def test_a_run_stops_early(data, tmp_path):
    report = trained(data, tmp_path / "r", early_stop=1, epochs=9, lr=1e-30)
    assert report.stopped_early == 2
    assert len(report.epochs) == 2
    assert "stopped after epoch 2: the validation loss had not fallen for 1" in str(report)
    again = train.resume(tmp_path / "r", {"early_stop": 3, "epochs": 3}, progress=False)
    assert len(again.epochs) == 3
    assert again.stopped_early is None


@pytest.mark.parametrize("settings", [{"early_stop": 2}, {"schedule": "plateau"}])
def test_what_goes_by_validation_needs_some(settings, tmp_path, esol):
    few = sg.GraphStore.from_pyg(esol[:20], name="few", progress=False)
    few.with_splits(train=range(20), val=(), test=()).save(tmp_path / "few")
    with pytest.raises(ValueError, match="few has no graphs to validate"):
        trained(str(tmp_path / "few"), tmp_path / "r", **settings)


# ---------------------------------------------------------------------- kernels and modes


def test_without_kernels_auto_leaves_out_what_is_made_of_them():
    auto = mode_of(TrainConfig("d", kernels="off"))
    assert isinstance(auto, Auto)
    assert FUSED not in auto.ways
    assert mode_of(TrainConfig("d", kernels="on")) == "auto"
    assert mode_of(TrainConfig("d", kernels="off", compile_mode="eager")) == "eager"
    with pytest.raises(ValueError, match="compile_mode='fused' is made of the fused kernels"):
        TrainConfig("d", kernels="off", compile_mode="fused")


# ---------------------------------------------------------------------- a model by name


def test_a_model_by_name_is_trained_resumed_and_loaded(data, tmp_path, monkeypatch, capsys):
    write_module("own_net", OWN, tmp_path, monkeypatch)
    words = ["train", "--data", data, "--model", "own_net:build", "--batch-size", "16"]
    words += ["--compile-mode", "eager", "--kernels", "off", "--epochs", "1", "--out", "r"]
    assert "--layers is of the models gine" in refusal([*words, "--layers", "2"], capsys)
    assert printed_json([*words, "--json"], capsys)["config"]["model"] == "own_net:build"
    assert status_of(["train", "--resume", "--out", "r", "--epochs", "2"]) == 0
    assert "own_net:build," in capsys.readouterr().out
    trained(data, tmp_path / "zoo", epochs=2, kernels="off")
    assert losses_of(tmp_path / "r") == losses_of(tmp_path / "zoo")
    loaded = Trained.load(tmp_path / "r", torch.device("cpu"))
    assert loaded.config.model == "own_net:build"
    settings = tomllib.loads((tmp_path / "r" / "config.toml").read_text())
    assert settings["model"] == "own_net:build"
    assert "hidden" not in settings
    given = ["train", "--config", "r/config.toml", "--out", "other"]
    assert "--hidden is of the models gine" in refusal([*given, "--hidden", "4"], capsys)
    (tmp_path / "own_net.py").write_text(OWN.replace("hidden=8", "hidden=16"))
    monkeypatch.delitem(sys.modules, "own_net")
    with pytest.raises(CheckpointCorrupt, match="another model than own_net:build builds now"):
        Trained.load(tmp_path / "r", torch.device("cpu"))
    with pytest.raises(CheckpointCorrupt, match="another model than own_net:build builds now"):
        train.resume(tmp_path / "r", {"epochs": 3}, progress=False)


def test_what_a_model_holds_besides_finite_tensors_is_kept(data, tmp_path, monkeypatch):
    write_module("stateful_net", STATEFUL, tmp_path, monkeypatch)
    words = ["--data", data, "--model", "stateful_net:build", "--compile-mode", "eager"]
    assert status_of(["train", *words, "--epochs", "1", "--out", "r"]) == 0
    assert status_of(["train", "--resume", "--out", "r", "--epochs", "2"]) == 0
    loaded = Trained.load(tmp_path / "r", torch.device("cpu"))
    assert loaded.model.get_buffer("least.least") == torch.inf


# ---------------------------------------------------------------------- a file of settings


def test_a_run_writes_the_settings_that_begin_it_again(data, tmp_path):
    config = TrainConfig(data, **SMALL, epochs=1, clip_norm=0.5, autocast="bfloat16")
    train.train(config, tmp_path / "r", progress=False)
    assert tomllib.loads((tmp_path / "r" / "config.toml").read_text()) == {
        name: value for name, value in asdict(config).items() if value is not None
    }


@pytest.mark.parametrize(
    "data", ['quo"te', "back\\slash", "new\nline", "umläut", "\x7f\x01", "tab\t", "😀"]
)
def test_any_text_survives(data, tmp_path):
    TrainConfig(data).save(tmp_path / "c.toml")
    assert tomllib.loads((tmp_path / "c.toml").read_text())["data"] == data


def test_the_command_line_goes_before_the_file(data, tmp_path, capsys):
    (tmp_path / "c.toml").write_text(
        f'data = "{data}"\nmodel = "gin"\nbatch-size = 16\nhidden = 8\nlayers = 1\nepochs = 1\n'
        'compile_mode = "eager"\nlr = 1\nallow-cpu = true\n'
    )
    words = ["train", "--config", str(tmp_path / "c.toml"), "--lr", "0.25", "--out",
             str(tmp_path / "r"), "--json"]  # fmt: skip
    config = printed_json(words, capsys)["config"]
    assert (config["batch_size"], config["lr"], config["allow_cpu"]) == (16, 0.25, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batchsize = 3", "batchsize]"),
        ("zzz = 3", "zzz]"),
        ("epochs = 0", "epochs: '0': give a whole number from 1"),
        ('epochs = "three"', "epochs: 'three': give a whole number"),
        ("epochs = 1.5", "epochs: '1.5': give a whole number"),
        ("allow_cpu = 'perhaps'", "invalid value for [allow_cpu] from"),
        ('pool = "max"', 'invalid value "max" for [pool] from'),
        ("[model]\nname = 3", "[model][name]"),
        ("epochs = [1]", "invalid value for [epochs] from"),
        ("epochs = ", "is not valid TOML"),
        ("batch-size = 3\nbatch_size = 4", "batch_size is there twice"),
    ],
)
def test_settings_that_are_none_are_named(line, message, data, tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text(f"{line}\n")
    words = ["train", "--data", data, "--config", str(path), "--out", str(tmp_path / "r")]
    err = refusal(words, capsys)
    assert message in err
    assert str(path) in err
    assert len(err.strip().splitlines()) == 1
