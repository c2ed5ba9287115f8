"""The report of a finished run: as a table for people, as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from staticgraph.files.document import NOT_THERE, finite, save_json
from staticgraph.runner.report import Report
from staticgraph.text.how_many import how_many, some
from staticgraph.text.table import as_preformatted, table
from staticgraph.training.config import CHECKPOINT, REPORT
from staticgraph.training.history import EpochRecord

GIVE = "the folder that staticgraph train was given as --out"


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
        path = folder / REPORT
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}: give {GIVE}")
        again = ""
        if (folder / CHECKPOINT).exists():
            again = f"continue it with staticgraph train --resume --out {folder}"
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} has no {REPORT}: "
                + (f"no run has finished there; {again}" if again else f"no run; give {GIVE}")
            )
        try:
            return cls._of(json.loads(path.read_text()), folder)
        except NOT_THERE as error:
            raise ValueError(
                f"{path} is not a report that this version reads ({type(error).__name__}: {error})"
                f"; {again or 'its run has no checkpoint to write it from: train again'}"
            ) from error

    @classmethod
    def _of(cls, values: dict[str, Any], folder: Path) -> TrainReport:
        epochs = ({k: e[k] for k in EpochRecord._fields} for e in values["epochs"])
        return cls(
            **{
                **values,
                "folder": str(folder),
                "classes": tuple(values.get("classes", ())),
                "epochs": tuple(EpochRecord(**epoch) for epoch in epochs),
                "runner": Report.from_dict(values["runner"]),
            }
        )

    def epoch_table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The headers, and one row of strings per epoch."""
        headers = ("epoch", "loss", "val loss", f"val {self.metric}", "graphs/s", "seconds")
        return headers, [
            (
                str(epoch.epoch + 1),
                number_text(epoch.train_loss),
                number_text(epoch.val_loss),
                number_text(epoch.val_metric),
                f"{epoch.graphs_per_s:,.0f}",
                f"{epoch.seconds:.2f}",
            )
            for epoch in self.epochs
        ]

    @property
    def data_text(self) -> str:
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
    def warnings(self) -> list[str]:
        """What is unusual about the run, one line each."""
        lines = []
        if self.diverged is not None:
            lines.append(f"diverged in epoch {self.diverged}: the loss is not finite")
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
        lines = [self.data_text, "", table(*self.epoch_table()), ""]
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
        lines += ["", *(f"{what}: {self.folder}/{name}" for what, name in self.files.items())]
        return "\n".join(lines)


def number_text(value: float | None) -> str:
    """A loss or a metric as text; ``-`` for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
