"""The measurements of a training run, per step and per epoch, as plain numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from staticgraph.files import atomic
from staticgraph.sizes.capacity import Capacity

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
        steps: the steps whose loss is on the host, in order.
        epochs: the finished epochs.
        seconds: training time of the current epoch, including the time before a resume.
    """

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []
        self.seconds: float = 0.0
        self._unread: list[tuple[StepRecord, Tensor]] = []

    @property
    def number(self) -> int:
        """The number of steps, also those whose loss is still on the device."""
        return len(self.steps) + len(self._unread)

    @property
    def full(self) -> bool:
        """Whether the losses on the device should be read now."""
        return len(self._unread) >= READ_EVERY

    def add(self, step: StepRecord, loss: Tensor) -> None:
        """Adds a step and its loss, 0-dim on the device."""
        self._unread.append((step, loss))

    def read(self) -> list[StepRecord]:
        """Copies all losses from the device at once, and returns their steps."""
        if not self._unread:
            return []
        import torch  # not above, since a report is read without it

        losses = torch.stack([loss for _, loss in self._unread]).tolist()
        read = [s._replace(loss=x) for (s, _), x in zip(self._unread, losses, strict=True)]
        self._unread.clear()
        self.steps += read
        return read

    @property
    def val_losses(self) -> list[float | None]:
        """The validation loss of each finished epoch."""
        return [epoch.val_loss for epoch in self.epochs]

    def graphs_in(self, epoch: int) -> int:
        """The number of graphs that an epoch has trained on so far."""
        return sum(step.graphs for step in self.steps if step.epoch == epoch)

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


def summary(steps: Iterable[StepRecord], epoch: int) -> tuple[float, int]:
    """The mean loss over the graphs of an epoch, and their number."""
    records = [step for step in steps if step.epoch == epoch]
    graphs = sum(step.graphs for step in records)
    return sum(step.loss * step.graphs for step in records) / max(1, graphs), graphs


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
        return [
            StepRecord(
                *(int(row[name]) for name in StepRecord._fields[:-1]), loss=float(row["loss"])
            )
            for row in rows
        ]
