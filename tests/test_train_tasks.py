"""What a training run learns and measures: other tasks, missing labels, and evaluation equal to
that over PyG's loader."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.examples import EXAMPLES
from torch_geometric.loader import DataLoader

import staticgraph as sg
from staticgraph import models
from staticgraph.training import train
from staticgraph.training.config import TrainConfig
from staticgraph.training.tasks import evaluate, task_of


@pytest.mark.parametrize(
    ("data", "model", "task", "metric"),
    [("hiv", "gine", "binary", "ROC-AUC"), ("MUTAG", "gin", "classes", "accuracy")],
)
def test_other_tasks(data, model, task, metric, tmp_path, hiv):
    spec = str(EXAMPLES / f"{data}.npz")
    if data == "hiv":  # 40 active molecules and 80 others
        y = hiv.columns["y"].ravel()
        ids = np.concatenate([np.flatnonzero(y == 1)[:40], np.flatnonzero(y == 0)[:80]])
        few = sg.GraphStore.from_pyg(hiv[ids], name="few")
        spec = str(tmp_path / "few")
        few.with_splits(**sg.datasets.random_split(120, 0)).save(spec)
    settings = TrainConfig(
        spec, model=model, hidden=8, layers=1, batch_size=32, epochs=3, lr=3e-3,
        compile_mode="eager",
    )  # fmt: skip
    report = train.train(settings, tmp_path / "run")
    assert (report.task, report.metric) == (task, metric)
    assert report.epochs[-1].train_loss < report.epochs[0].train_loss
    assert 0 <= report.epochs[-1].val_metric <= 1


def test_evaluation_is_what_pygs_loader_gives(hiv):
    """Packed freely, ten times as many graphs per batch as in training: equal loss and metric."""
    model = models.build("gine", hiv, hidden=8, layers=2)
    ids = hiv.splits["val"][:700]
    task = task_of(hiv)
    outs, ys = [], []
    model.eval()
    with torch.no_grad():
        for data in DataLoader(hiv[ids], batch_size=100):
            outs.append(model(data.x, data.edge_index, data.edge_attr, data.batch, data.num_graphs))
            ys.append(data.y)
    out, y = torch.cat(outs), torch.cat(ys)
    expected_loss = torch.nn.functional.binary_cross_entropy_with_logits(out.double(), y.double())
    plan = sg.plan_buckets(hiv, 64)
    runner = sg.StaticGraphRunner(model, plan, loss=lambda o, b: task.row_loss(o, b.y))
    loader = sg.StaticLoader(hiv, plan, indices=ids, exact=False)
    loss, metric, _ = evaluate(runner, loader, task)
    assert loss == pytest.approx(float(expected_loss), rel=1e-5)
    assert metric == pytest.approx(task.metric(out, y), abs=1e-4)
