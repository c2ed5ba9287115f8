"""The measurements of a run, per step and per epoch, and its report: a table, and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from staticgraph.files import atomic
from staticgraph.files.document import NOT_THERE, finite, save_json
from staticgraph.runner.report import Report
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many, some
from staticgraph.text.table import as_preformatted, table
from staticgraph.training.config import CHECKPOINT, REPORT

if TYPE_CHECKING:
    from torch import Tensor

# The number of steps after which losses are read from the device.
READ_EVERY = 20


class StepRecord(NamedTuple):
    """One training step; ``graphs``, ``nodes`` and ``edges`` are real rows, not physical ones."""

    epoch: int
    bucket: int
    graphs: int
    nodes: int
    edges: int
    loss: float


class EpochRecord(NamedTuple):
    """One pass over the training graphs.

    ``seconds`` is the time spent on training (loading, copy and step; no validation), including the
    time before a resume. Losses and the metric cover only real, labelled targets; those of
    validation are None without graphs to validate.
    """

    epoch: int
    train_loss: float
    seconds: float
    graphs: int
    val_loss: float | None
    val_metric: float | None

    @property
    def graphs_per_s(self) -> float:
        """Real graphs per second."""
        return self.graphs / max(self.seconds, 1e-9)


class History:
    """The steps and epochs of a run so far.

    Attributes:
        steps: the steps in order; the loss of the last ones is NaN until :meth:`read`.
        epochs: the finished epochs.
        seconds: training time of the current epoch, including the time before a resume.
    """

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []
        self.seconds: float = 0.0
        self._unread: list[Tensor] = []

    @property
    def full(self) -> bool:
        """Whether the losses on the device should be read now."""
        return len(self._unread) >= READ_EVERY

    def add(self, step: StepRecord, loss: Tensor) -> None:
        """Adds a step and its loss, 0-dim on the device."""
        self.steps.append(step)
        self._unread.append(loss)

    def read(self) -> list[StepRecord]:
        """Copies all losses from the device at once, and returns their steps."""
        if not self._unread:
            return []
        import torch  # not above, since a report is read without it

        losses = torch.stack(self._unread).tolist()
        first = len(self.steps) - len(losses)
        self._unread.clear()
        self.steps[first:] = [
            step._replace(loss=loss) for step, loss in zip(self.steps[first:], losses, strict=True)
        ]
        return self.steps[first:]

    @property
    def val_losses(self) -> list[float | None]:
        """The validation loss of each finished epoch."""
        return [epoch.val_loss for epoch in self.epochs]

    def of_epoch(self, epoch: int) -> list[StepRecord]:
        """The steps of an epoch so far."""
        return [step for step in self.steps if step.epoch == epoch]

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "steps": [tuple(step) for step in self.steps],
            "epochs": [tuple(epoch) for epoch in self.epochs],
            "seconds": self.seconds,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the output of :meth:`state`."""
        self.steps = [StepRecord(*step) for step in state["steps"]]
        self.epochs = [EpochRecord(*epoch) for epoch in state["epochs"]]
        self.seconds = state["seconds"]


def mean_loss(steps: Sequence[StepRecord]) -> float:
    """The mean loss over the graphs of some steps; 0 without any."""
    graphs = sum(step.graphs for step in steps)
    return sum(step.loss * step.graphs for step in steps) / max(1, graphs)


def full_steps(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps of full batches, without the last, partial batch of an epoch."""
    most = max((step.graphs for step in steps), default=0)
    return [step for step in steps if step.graphs == most]


def filled(steps: Sequence[StepRecord], capacities: Sequence[Capacity], rows: str) -> float | None:
    """The share of ``nodes``, ``edges`` or ``graphs`` that is real in steps; None without steps."""
    physical = sum(getattr(capacities[step.bucket], rows) for step in steps)
    return sum(getattr(step, rows) for step in steps) / max(1, physical) if steps else None


def full_shares(steps: Sequence[StepRecord], capacities: Sequence[Capacity]) -> dict[str, float]:
    """The shares of nodes and edges that are real in full batches; empty if all are full."""
    full = full_steps(steps)
    if len(full) == len(steps):
        return {}
    return {rows: filled(full, capacities, rows) or 0.0 for rows in ("nodes", "edges")}


def write_steps(path: Path, steps: Sequence[StepRecord]) -> None:
    """Writes one line per step, with numbers in full so that two runs can be compared exactly."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("step", *StepRecord._fields))
    writer.writerows((number, *step) for number, step in enumerate(steps))
    atomic.write_text(path, text.getvalue())


def read_steps(path: Path) -> list[StepRecord]:
    """Reads a file that :func:`write_steps` wrote."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        names = StepRecord._fields[:-1]
        return [StepRecord(*(int(row[n]) for n in names), loss=float(row["loss"])) for row in rows]


def task_words(name: str, outputs: int, metric: str, classes: Sequence[str] = ()) -> str:
    """A description such as ``predicting one of 3 classes (CA, CI, CM), judged by accuracy``.

    Args:
        name: ``binary``, ``regression`` or ``classes``.
        outputs: columns of the model's output.
        metric: the name of the metric.
        classes: the names of the classes, if they have names.
    """
    if name == "classes":
        what = f"one of {how_many(outputs, 'class')}" + (f" ({some(classes)})" if classes else "")
    elif name == "binary":
        what = "yes or no" + (f" for {how_many(outputs, 'target')}" if outputs > 1 else "")
    else:
        what = "a number" if outputs == 1 else how_many(outputs, "number")
    return f"predicting {what}, judged by {metric}"


@dataclass(frozen=True, slots=True)
class TrainReport:
    """The report of a training run.

    Attributes:
        folder: the folder with its files.
        config: the settings, including defaults.
        data: the data set's name and place, its number of graphs, and the graphs of each split.
        task: ``binary``, ``regression`` or ``classes``.
        metric: the name of the task's metric.
        parameters: the number of trained parameters.
        epochs: one entry per epoch.
        test_metric: the metric of the final model; None without test graphs.
        resumed_at: steps before the last resume; the runner's figures do not include them.
        runner: buckets, compilations, recordings and fallbacks since the last resume.
        files: the names of the run's files in the folder, by what they contain.
        diverged: the epoch, counted from 1, in which the loss ceased to be finite, or None.
        stopped_early: the number of epochs if the run stopped early; None if all ran.
        memory: bytes of parameters, optimizer state and graphs, and the peak use of host and device
            memory; None where unknown.
        outputs: columns of the model's output: numbers, yes-no questions or classes; None in older
            reports.
        classes: the names of the classes 0, 1, ..., if the data has names for them.
        full_batches: the shares of nodes and edges that are real in full batches; empty if all
            batches are full, since these are the shares of the runner's report.
    """

    folder: str
    config: dict[str, Any]
    data: dict[str, Any]
    task: str
    metric: str
    parameters: int
    epochs: tuple[EpochRecord, ...]
    test_metric: float | None
    resumed_at: int
    runner: Report
    files: dict[str, str] = field(default_factory=dict)
    diverged: int | None = None
    stopped_early: int | None = None
    memory: dict[str, int | None] = field(default_factory=dict)
    outputs: int | None = None
    classes: tuple[str, ...] = ()
    full_batches: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON; numbers that are not finite become None."""
        epochs = [{**e._asdict(), "graphs_per_s": round(e.graphs_per_s, 1)} for e in self.epochs]
        return finite({**asdict(self), "epochs": epochs, "runner": self.runner.to_dict()})

    def save(self, path: Path) -> None:
        """Writes the report as JSON."""
        save_json(path, self.to_dict())

    @classmethod
    def load(cls, folder: Path) -> TrainReport:
        """Reads the report of a run.

        Raises:
            FileNotFoundError: the folder does not exist, or has no finished run.
            ValueError: the file is not a report, or was written by another version.
        """
        path, give = folder / REPORT, "give the folder that staticgraph train was given as --out"
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}: {give}")
        again = ""
        if (folder / CHECKPOINT).exists():
            again = f"continue it with staticgraph train --resume --out {folder}"
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} has no {REPORT}: "
                + (f"no run has finished there; {again}" if again else f"no run; {give}")
            )
        try:
            values = json.loads(path.read_text())
            values["folder"] = str(folder)
            values["classes"] = tuple(values.get("classes", ()))
            epochs = ([epoch[name] for name in EpochRecord._fields] for epoch in values["epochs"])
            values["epochs"] = tuple(EpochRecord(*epoch) for epoch in epochs)
            values["runner"] = Report.from_dict(values["runner"])
            return cls(**values)
        except NOT_THERE as error:
            raise ValueError(
                f"{path} is not a report that this version reads ({type(error).__name__}: {error})"
                f"; {again or 'its run has no checkpoint to write it from: train again'}"
            ) from error

    def _data_text(self) -> str:
        """What was trained on which graphs, on one line."""
        config, splits = self.config, self.data["splits"]
        model = config["model"]
        if ":" not in model:  # a ``module:build`` model has no sizes
            model += f", {how_many(config['layers'], 'layer')} of {config['hidden']}"
        learned = ""
        if self.outputs is not None:
            learned = f", {task_words(self.task, self.outputs, self.metric, self.classes)}"
        return (
            f"{model}, {how_many(self.parameters, 'parameter')}, on {self.data['name']} "
            f"({how_many(splits['train'], 'graph')} to train, {splits['val']:,} to validate, "
            f"{splits['test']:,} to test), batches of {config['batch_size']}{learned}"
        )

    @property
    def judged(self) -> bool:
        """Whether an epoch has a finite validation loss, or there is nothing to validate."""
        losses = [epoch.val_loss for epoch in self.epochs]
        finite = [loss is not None and math.isfinite(loss) for loss in losses]
        return any(finite) or not finite or not self.data["splits"]["val"]

    @property
    def warnings(self) -> list[str]:
        """What is unusual about the run, one line each."""
        lines = []
        if self.diverged is not None:
            lines.append(f"diverged in epoch {self.diverged}: the loss is not finite")
        if not self.judged:
            lines.append("no epoch has a finite validation loss: look for NaN in what is validated")
        if self.stopped_early is not None:
            lines.append(
                f"stopped after epoch {self.stopped_early}: the validation loss had not fallen for "
                f"{self.config['early_stop']}"
            )
        if self.resumed_at:
            lines.append(f"resumed: the buckets count what came after step {self.resumed_at:,}")
        return lines

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        headers = ("epoch", "loss", "val loss", f"val {self.metric}", "graphs/s", "seconds")
        rows = [
            (
                e.epoch + 1,
                *map(number_text, (e.train_loss, e.val_loss, e.val_metric)),
                f"{e.graphs_per_s:,.0f}",
                f"{e.seconds:.2f}",
            )
            for e in self.epochs
        ]
        lines = [self._data_text(), "", table(headers, rows), ""]
        if self.diverged is None:
            lines.append(f"test {self.metric} of the final model: {number_text(self.test_metric)}")
            lines.append("")
        lines.append(str(self.runner))
        if shares := self.full_batches:
            lines.append(
                f"full batches: {shares['nodes']:.1%} of nodes and {shares['edges']:.1%} of edges "
                "filled; the table also counts the last, partial batch of an epoch"
            )
        lines += self.warnings
        written = {what: Path(self.folder, name) for what, name in self.files.items()}
        lines += ["", *(f"{what}: {path}" for what, path in written.items() if path.exists())]
        return "\n".join(lines)


def number_text(value: float | None) -> str:
    """A loss or a metric as text; ``-`` for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
