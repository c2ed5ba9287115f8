"""The picture of a run: it is drawn for every shape of run, and its running mean is weighted."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from staticgraph.runner.report import Report
from staticgraph.sizes.capacity import Capacity
from staticgraph.training import plots
from staticgraph.training.report import (
    EpochRecord,
    StepRecord,
    TrainReport,
    full_shares,
    full_steps,
)

pytestmark = pytest.mark.usefixtures("painted")

CAPACITIES = (Capacity(100, 210, 9), Capacity(200, 420, 17))


def report_of(*metrics: float | None) -> TrainReport:
    return TrainReport(
        folder="run",
        config={"model": "gine", "batch_size": 8, "hidden": 4, "layers": 1},
        data={"name": "toy", "graphs": 8, "splits": {"train": 8, "val": 0, "test": 0}},
        task="binary",
        metric="ROC-AUC",
        parameters=1,
        epochs=tuple(EpochRecord(i, 0.5, 1.0, 8, m and 0.4, m) for i, m in enumerate(metrics)),
        test_metric=None,
        resumed_at=0,
        runner=Report("m", "cpu", "eager", "as asked", None, (), (), {}),
    )


def steps_of(epochs: int, buckets: int = 1, batches: int = 5) -> list[StepRecord]:
    return [
        StepRecord(epoch, number % buckets, 8, 60 + number, 150 + number, 1.0 / (1 + number))
        for epoch in range(epochs)
        for number in range(batches)
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("report", "steps"),
    [
        (report_of(0.6, 0.8), steps_of(2)),
        (report_of(0.6, 0.8), steps_of(2, buckets=2)),
        (report_of(float("nan")), steps_of(1)),
        (report_of(None), steps_of(1)),
        (report_of(0.6), steps_of(1, batches=1)),
    ],
)
def test_any_run_can_be_drawn(report, steps, tmp_path):
    plots.save_picture(tmp_path / "run.png", plots.draw_run, report, steps, CAPACITIES)
    image = np.asarray(Image.open(tmp_path / "run.png").convert("L"))
    assert image.shape == (900, 1320)
    assert 0.02 < (image < 250).mean() < 0.6, "neither empty nor black"


def test_what_is_drawn_is_what_was_measured():
    steps = steps_of(2)
    axes = Figure().add_subplot()
    plots.draw_loss(axes, report_of(0.6, 0.8), steps)
    drawn = axes.lines[0].get_ydata()
    assert drawn.tolist() == [step.loss for step in steps]
    assert axes.lines[0].get_xdata().tolist() == list(range(1, 11))
    (twin,) = (other for other in axes.figure.axes if other is not axes)
    assert twin.lines[0].get_xdata().tolist() == [5, 10]
    assert twin.lines[0].get_ydata().tolist() == [0.6, 0.8]


@pytest.mark.parametrize("finite", [0, 1, 3])
@pytest.mark.parametrize("metrics", [(), (0.6, float("nan"))])
def test_of_a_run_that_diverged_what_is_finite_is_drawn(finite, metrics):
    steps = steps_of(1)
    steps[finite:] = [step._replace(loss=float("nan")) for step in steps[finite:]]
    axes = Figure().add_subplot()
    plots.draw_loss(axes, report_of(*metrics), steps)
    assert axes.lines[0].get_xydata().shape == (finite, 2)
    assert f"the losses of {5 - finite} steps are not finite" in axes.get_title()


def test_filling_is_real_over_physical_rows_and_a_partial_last_batch_is_no_spike():
    """Its loss is not drawn; its rows are in no other mean."""
    full = steps_of(1)
    steps = [*full, StepRecord(0, 0, 2, 15, 30, 6.0)]
    axes = Figure().add_subplot()
    plots.draw_loss(axes, report_of(0.5), steps)
    assert axes.lines[0].get_ydata().tolist() == [step.loss for step in full]
    assert full_steps(steps) == full
    # Nodes (60 + ... + 64) / 5 of 100, edges (150 + ... + 154) / 5 of 210, graphs 8 of 9.
    assert full_shares(steps, CAPACITIES) == pytest.approx({"nodes": 0.62, "edges": 152 / 210})
    assert full_shares(full[:1], CAPACITIES) == {}
    axes = Figure().add_subplot()
    plots.draw_filling(axes, steps, CAPACITIES)
    written = [text.get_text() for text in axes.texts]
    assert written == ["62.0%", "72.4%", "88.9%", "not used", "not used", "not used"]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:2] == ["bucket 0: 100 nodes", "bucket 0: 210 edges"]
