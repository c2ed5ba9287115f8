"""The dtype of y determines the task; metrics match scikit-learn; missing labels never count."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import staticgraph as sg
from staticgraph.training import tasks

NONE = np.empty(0, np.int64)


def store_of(y: np.ndarray | None, level: str = "graph", graphs: int = 4, **options):
    fields = {} if y is None else {"y": (level, y)}
    return sg.GraphStore.from_arrays(
        np.ones(graphs, int), np.zeros(graphs, int), NONE, NONE, fields, name="toy", **options
    )


@pytest.mark.parametrize(
    ("y", "name", "metric", "outputs"),
    [
        (np.array([[0], [1], [1], [0]], np.float32), "binary", "ROC-AUC", 1),
        (np.array([[0, np.nan]] * 4, np.float32), "binary", "ROC-AUC", 2),
        (np.array([0, 1, 0.5, 0], np.float32), "regression", "RMSE", 1),
        (np.array([[0, 2]] * 4, np.float64), "regression", "RMSE", 2),
        (np.array([0, 2, 1, 0]), "classes", "accuracy", 3),
        (np.array([[0], [2], [1], [0]], np.int32), "classes", "accuracy", 3),
    ],
)
def test_the_dtype_tells_the_task(y, name, metric, outputs):
    task = tasks.task_of(store_of(y))
    assert (task.name, task.metric_name, task.num_outputs) == (name, metric, outputs)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (store_of(None), "toy has no target y: there is nothing to train on; give each graph its"),
        (store_of(np.ones(4), "node"), "y as float64 [] per node; expected one row per graph"),
        (store_of(np.ones(8), rows={"y": 2}), "y as float64 [2] per graph; expected one row"),
        (store_of(np.full((4, 2), np.nan)), "every value of it is missing (NaN)"),
        (store_of(np.array([-1, 1, 1, -1])), "from -1; classes are one whole number per graph"),
        (store_of(np.ones((4, 2), int)), "give y as float for several yes-no questions"),
    ],
)
def test_targets_that_make_no_task(store, message):
    with pytest.raises(sg.BadGraph) as caught:
        tasks.task_of(store)
    assert message in str(caught.value)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_roc_auc_is_scikit_learns_mean_over_targets_with_both_answers(scale):
    """At scale 100, a float32 sigmoid would make half of the scores equal."""
    rng = torch.Generator().manual_seed(0)
    out = scale * torch.randn(300, 3, generator=rng)
    out[:50] = out[50:100]  # ties
    y = (torch.rand(300, 3, generator=rng) < 0.3).float()
    y[::7, 0] = torch.nan
    y[:, 2] = 1  # only one answer: left out of the mean
    known = ~torch.isnan(y[:, 0])
    expected = (
        roc_auc_score(y[known, 0], out[known, 0]) + roc_auc_score(y[:, 1], out[:, 1])
    ) / 2  # fmt: skip
    assert tasks.roc_auc(out, y) == pytest.approx(expected, abs=1e-6)
    assert math.isnan(tasks.roc_auc(out[:, 2:], y[:, 2:]))


def test_rmse_and_accuracy():
    y = torch.tensor([1.0, torch.nan, -2.0])
    assert tasks.rmse(torch.tensor([[2.0], [9.0], [0.0]]), y) == pytest.approx(math.sqrt(2.5))
    assert math.isnan(tasks.rmse(torch.ones(2, 1), torch.full((2,), torch.nan)))
    out = torch.tensor([[3.0, 1, 2], [0, 1, 2], [0, 5, 1], [1, 0, 0]])
    assert tasks.accuracy(out, torch.tensor([0, 2, 0, 0])) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("y", "out", "expected"),
    [
        ([[1.0, math.nan]], [[0.0, 50.0]], math.log(2)),
        ([[3.0, math.nan], [1.5, 1.0]], [[1.0, 50.0], [1.5, 2.0]], (4 + 0 + 1) / 3),
    ],
)
def test_missing_labels_count_nowhere_in_the_loss(y, out, expected):
    y = np.array(y, np.float32)
    task = tasks.task_of(store_of(y, graphs=len(y)))
    assert tasks.mean_loss(task.row_loss, torch.tensor(out), torch.tensor(y)) == pytest.approx(
        expected
    )


def test_a_model_whose_outputs_are_nan_has_no_metric():
    """And not the best one: NaN would sort first and be the largest of the classes."""
    broken = torch.full((4, 1), math.nan)
    answers = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    assert math.isnan(tasks.roc_auc(broken, answers))
    assert math.isnan(tasks.rmse(broken, answers))
    assert math.isnan(tasks.accuracy(torch.full((4, 2), math.nan), torch.zeros(4, 1)))
    # Where the label is missing, the output does not matter.
    answers[0] = math.nan
    broken[1:] = torch.tensor([[2.0], [3.0], [1.0]])
    assert tasks.roc_auc(broken, answers) == 1.0
