"""The picture of a run: it is drawn for every shape of run, and its running mean is weighted."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from staticgraph.runner.report import Report
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.training import plots
from staticgraph.training.history import EpochRecord, StepRecord, full_shares, full_steps
from staticgraph.training.plots import draw_losses, draw_sizes
from staticgraph.training.report import TrainReport
from staticgraph.training.versus.report import SideReport

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
    plots.save_picture(tmp_path / "run.png", report, steps, CAPACITIES)
    image = np.asarray(Image.open(tmp_path / "run.png").convert("L"))
    assert image.shape == (900, 1320)
    assert 0.02 < (image < 250).mean() < 0.6, "neither empty nor black"


def test_what_is_drawn_is_what_was_measured():
    steps = steps_of(2)
    axes = Figure().add_subplot()
    plots.draw_loss(axes, report_of(0.6, 0.8), steps)
    drawn = axes.lines[0].get_ydata()
    assert drawn.tolist() == [step.loss for step in steps]
    (twin,) = (other for other in axes.figure.axes if other is not axes)
    assert twin.lines[0].get_xdata().tolist() == [5, 10]
    assert twin.lines[0].get_ydata().tolist() == [0.6, 0.8]


def test_a_partial_last_batch_is_no_spike_and_has_a_filling_of_its_own():
    """Its loss is the mean over the graphs of both batches; its rows are in no other mean."""
    steps = [StepRecord(0, 0, 8, 60, 150, 1.0), StepRecord(0, 0, 2, 15, 30, 6.0)]
    assert plots.pooled_losses(steps).tolist() == [1.0, (8 * 1.0 + 2 * 6.0) / 10]
    assert full_steps(steps) == steps[:1]
    assert full_shares(steps, CAPACITIES) == {"nodes": 0.6, "edges": 150 / 210}
    assert full_shares(steps[:1], CAPACITIES) == {}
    axes = Figure().add_subplot()
    plots.draw_filling(axes, steps, CAPACITIES[:1])
    written = [text.get_text() for text in axes.texts]
    assert written == ["60.0%", "71.4%", "88.9%", "15.0%", "14.3%"]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[3:] == ["last batch, 2 of 8 graphs: nodes", "last batch, 2 of 8 graphs: edges"]


def test_validation_losses_are_within_the_picture_wherever_they_lie():
    steps = steps_of(2)
    report = report_of(0.6, 0.8)
    for val_loss in (40.0, 1e-3):
        axes = Figure().add_subplot()
        epochs = tuple(epoch._replace(val_loss=val_loss) for epoch in report.epochs)
        plots.draw_loss(axes, replace(report, epochs=epochs), steps)
        low, high = axes.get_ylim()
        assert low <= val_loss < high
        assert low <= min(step.loss for step in steps)


@pytest.mark.parametrize(("metrics", "share"), [([0.708, 0.696], 0.1), ([0.5, 0.5], 0.1)])
def test_a_metric_that_hardly_changes_is_drawn_so(metrics, share):
    axes = Figure().add_subplot()
    plots.draw_metric(axes, "ROC-AUC", np.arange(2), np.array(metrics))
    low, high = axes.get_ylim()
    assert low < min(metrics)
    assert max(metrics) < high
    assert max(metrics) - min(metrics) < share * (high - low)


def test_filling_is_real_over_physical_rows():
    axes = Figure().add_subplot()
    plots.draw_filling(axes, steps_of(1), CAPACITIES)
    written = [text.get_text() for text in axes.texts]
    # Nodes (60 + ... + 64) / 5 of 100, edges (150 + ... + 154) / 5 of 210, graphs 8 of 9.
    assert written == ["62.0%", "72.4%", "88.9%", "not used", "not used", "not used"]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:2] == ["bucket 0: 100 nodes", "bucket 0: 210 edges"]


def test_graphs_without_edges_have_a_filling_of_nodes_alone():
    axes = Figure().add_subplot()
    plots.draw_spread(axes, [StepRecord(0, 0, 8, 60, 0, 1.0)], [Capacity(100, 0, 9)])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["nodes"]


def test_the_running_mean_is_weighted():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=30), rng.integers(1, 9, 30)
    for width in (1, 4, 100):
        expected = [
            np.average(
                values[max(0, i - width + 1) : i + 1],
                weights=weights[max(0, i - width + 1) : i + 1],
            )
            for i in range(30)
        ]
        np.testing.assert_allclose(plots.running_mean(values, weights, width), expected)


def test_losses_that_are_equal_are_drawn_as_one_and_all_lines_show():
    """With one step, too, where matplotlib would stretch the last digits over the full height."""
    equal = [SideReport("PyG", losses=(14.48984,)), SideReport("fused", losses=(14.489847,))]
    axes = Figure().add_subplot()
    draw_losses(axes, equal, SimpleNamespace(random=False))
    low, high = axes.get_ylim()
    assert low < 14 < 15 < high
    assert all(tick == round(tick) for tick in axes.get_xticks())
    sides = [SideReport(name, losses=(3.0, 2.0, 1.5)) for name in ("PyG", "eager", "a", "b", "c")]
    axes = Figure().add_subplot()
    draw_losses(axes, sides, SimpleNamespace(random=False))
    assert axes.get_ylim()[1] - axes.get_ylim()[0] < 2, "that is of their own range"
    assert len({line.get_color() for line in axes.lines}) == len(sides)
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths == sorted(set(widths), reverse=True)


@pytest.mark.parametrize(("limits", "drawn"), [((12, 20), 1), ((300, 600), 0)])
def test_limits_far_beyond_the_graphs_are_named_and_leave_them_the_panel(limits, drawn):
    histogram = SizeHistogram(np.array([[3, 4], [9, 16]]), np.array([5, 2]))
    axes = Figure().add_subplot()
    draw_sizes(axes, histogram, None, [SimpleNamespace(limits=np.array(limits))])
    assert axes.get_xlim()[1] < 15
    (marks,) = axes.lines
    assert len(marks.get_xdata()) == drawn
    (text,) = axes.get_legend().get_texts()
    assert f"{limits[0]:,} nodes, {limits[1]:,} edges" in text.get_text()
    assert ("beyond the axes" in text.get_text()) == (not drawn)


@pytest.mark.parametrize(("costs", "shown"), [((1000, 999, 998), "100%"), ((900, 400, 9), "10%")])
def test_costs_of_buckets_are_plain_percents(costs, shown, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots.atomic, "save_figure", lambda _, figure, **__: figures.append(figure))
    choices = [SimpleNamespace(cost=cost) for cost in costs]
    plots.save_cost_picture(tmp_path / "knee.png", {"few": choices})
    (figure,) = figures
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    told = {each.get_text() for each in (*axis.get_majorticklabels(), *axis.get_minorticklabels())}
    assert shown in told
    assert all(re.fullmatch(r"[\d.]+%", text) for text in told - {""}), told
    assert max(float(text[:-1]) for text in told - {""}) == 100, "no cost is above one bucket's"
    assert np.ptp(figure.axes[0].get_ylim()) >= 10, "what saves nothing does not look like it"
