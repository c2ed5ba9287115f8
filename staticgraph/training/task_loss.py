"""The loss of a task in the form that a runner takes, with a check of the model's output; or a loss
by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from staticgraph.models.named import function_named
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.training.tasks import Task


@dataclass(frozen=True, slots=True)
class TaskLoss:
    """The ``loss(out, batch)`` of a task; it can be pickled for another process.

    Attributes:
        task: the task.
    """

    task: Task

    def __call__(self, out: Tensor, batch: Any) -> Tensor:
        """The loss per target; ``batch.y`` are the targets.

        Raises:
            ValueError: the model's output is not one row per graph with the task's columns.
        """
        self._check(out, batch)
        return self.task.row_loss(out, batch.y)

    def fits(self, out: Any, batch: Any) -> bool:
        """Whether a model's output has the shape that the task's metric needs."""
        try:
            self._check(out, batch)
        except ValueError:
            return False
        return True

    def _check(self, out: Any, batch: Any) -> None:
        rows, columns = len(batch.y), self.task.num_outputs
        if not isinstance(out, Tensor):
            raise ValueError(
                f"the model gives a {type(out).__name__}, and its loss takes a tensor of "
                f"[{rows}, {columns}], a row per graph: return that alone"
            )
        remedy = ""
        if out.dim() == 0 or len(out) != rows:
            per_node = out.dim() > 0 and len(out) == len(batch.batch)
            remedy = "pool over nodes" if per_node else "keep a row per graph"
            remedy += ", as global_mean_pool(x, batch) does"
        elif self._width(out) < columns or (self._width(out) > columns and not self._by_class):
            remedy = f"give its last layer {columns} for {self.task.name}"
        if remedy:
            raise ValueError(
                f"the model gives {list(out.shape)}, and its loss takes a row per graph, "
                f"[{rows}, {columns}] for this batch: {remedy}"
            )

    @property
    def _by_class(self) -> bool:
        """Whether columns are classes, of which a model may have more than the data."""
        return self.task.name == "classes"

    @staticmethod
    def _width(out: Tensor) -> int:
        return out.numel() // len(out)


def named_loss(spec: str) -> Loss:
    """The loss that ``--loss`` names.

    Raises:
        ValueError: the name is not that of a function that can be called as ``loss(out, batch)``.
    """
    loss = function_named(spec, "--loss")
    try:
        inspect.signature(loss).bind("out", "batch")
    except TypeError as error:
        raise ValueError(f"--loss {spec}: it is called as loss(out, batch): {error}") from None
    except ValueError:  # a function in C without a signature
        pass
    return loss
