"""A run trains with the loss that its options name, and judges by it."""

from __future__ import annotations

import math
import tomllib

import pytest
import torch
from support.command import write_module
from support.few_molecules import few_molecules
from support.trained_run import losses_of, trained
from torch_geometric.data import Batch

import staticgraph as sg
from staticgraph.training import train
from staticgraph.training.checkpoint import Trained
from staticgraph.training.config import TrainConfig

LOSSES = """\
def absolute(out, batch):
    return (out.view_as(batch.y) - batch.y).abs()


def likelihood(out, batch):  # of a mean and the logarithm of a variance
    mean, log = out.chunk(2, 1)
    return (mean - batch.y).square() * (-log).exp() + log


def build():
    import torch
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = GCNConv(9, 4), torch.nn.Linear(4, 2)

        def forward(self, x, edge_index, batch):
            return self.head(global_mean_pool(self.conv(x.float(), edge_index), batch))

    return Net()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory, esol) -> str:
    return str(few_molecules(esol, 110, tmp_path_factory, split=True))


@pytest.fixture
def users_losses(tmp_path, monkeypatch):
    write_module("users_losses", LOSSES, tmp_path, monkeypatch)


@pytest.mark.usefixtures("users_losses")
def test_a_loss_by_name_trains_and_judges(data, tmp_path):
    """The validation loss is the mean absolute error, the metric stays the task's, and a resumed
    run keeps the loss."""
    report = trained(data, tmp_path / "run", epochs=1, loss="users_losses:absolute")
    model = Trained.load(tmp_path / "run", torch.device("cpu")).model
    store = sg.datasets.open(data)
    val = store[store.splits["val"]]
    batch = Batch.from_data_list(val)
    out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.num_graphs)
    error = (out - batch.y).detach()
    assert report.epochs[0].val_loss == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert report.epochs[0].val_metric == pytest.approx(
        float(error.square().mean().sqrt()), rel=1e-5
    )
    assert losses_of(tmp_path / "run") != losses_of_default(data, tmp_path / "other")
    assert (
        tomllib.loads((tmp_path / "run" / "config.toml").read_text())["loss"]
        == "users_losses:absolute"
    )
    again = train.resume(tmp_path / "run", {"epochs": 2})
    assert again.config["loss"] == "users_losses:absolute"


def losses_of_default(data, folder):
    trained(data, folder, epochs=1)
    return losses_of(folder)


@pytest.mark.usefixtures("users_losses")
def test_outputs_that_the_metric_cannot_judge_have_none(data, tmp_path):
    own = {"model": "users_losses:build", "loss": "users_losses:likelihood"}
    config = TrainConfig(data, **own, batch_size=16, compile_mode="eager", epochs=1)
    report = train.train(config, tmp_path / "run")
    assert math.isfinite(report.epochs[0].val_loss)
    assert math.isnan(report.epochs[0].val_metric)
