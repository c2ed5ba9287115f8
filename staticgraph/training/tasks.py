"""The task that a data set's targets define: a loss, a metric, and the number of outputs.

The dtype decides. Floating-point targets that are all 0 or 1 are yes-no questions (one output
each), other floating-point targets are numbers to predict, integers are classes. NaN means "no
label" (as in OGB) and counts neither in the loss nor in the metric.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.datasets.specs import AUTO
from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import BadGraph
from staticgraph.models.named import function_named
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.store.graph_store import GraphStore
from staticgraph.training.job import ALONE


class Evaluation(NamedTuple):
    """The mean loss and the metric over graphs; None where there are none.

    ``not_finite`` are the ids of the graphs whose output, or whose loss, is NaN or infinite.
    """

    loss: float | None
    metric: float | None
    not_finite: tuple[int, ...] = ()


def evaluate(
    runner: StaticGraphRunner,
    batches: Iterable[StaticBatch],
    task: Task,
    ranks: Ranks = ALONE,
    own_loss: bool = False,
) -> Evaluation:
    """The mean loss and the metric over all real graphs of the batches.

    The metric is computed on all outputs together: the mean over batches or over ranks of a ROC-AUC
    would be a different number. Several ranks gather their outputs, in the order of graphs, and get
    results that are equal bit for bit.

    Args:
        runner: the runner of the model.
        batches: the batches of this rank.
        task: defines the loss and the metric.
        ranks: the processes with the other batches; each must call this.
        own_loss: the loss is the runner's: the mean over batches, weighted by their number of
            graphs. The metric is NaN if the outputs do not have the shape of the task's.
    """
    rows: list[tuple[Tensor, ...]] = []
    fits = True
    for batch in batches:
        out, loss = runner.eval_step(batch)
        graphs = batch.real_counts.graphs
        fits = fits and not (own_loss and task.misfit(out, batch))
        mean = torch.tensor(math.nan if loss is None else float(loss), dtype=torch.float64)
        tensors = (batch.graph_ids, mean.expand(graphs), *((out, batch.y) if fits else ()))
        # Copies, since the memory of batch and output is reused.
        rows.append(tuple(each[:graphs].to("cpu", copy=True) for each in tensors))
    fits = ranks.all(fits)
    columns = [torch.cat(each) for each in zip(*rows, strict=False)][: 4 if fits else 2]
    order = torch.cat(ranks.gathered(columns[0])).argsort()
    ids, means, *judged = [torch.cat(ranks.gathered(each))[order] for each in columns]
    mean = float(means.mean()) if own_loss else mean_loss(task.row_loss, *judged)
    finite = (judged[0] if judged else means).reshape(len(ids), -1).isfinite().all(1)
    if finite.all():
        finite = means.isfinite()
    faulty = () if math.isfinite(mean) else tuple(ids[~finite].tolist())
    return Evaluation(mean, task.metric(*judged) if judged else math.nan, faulty)


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of target; called as ``loss(out, batch)``, it is its own loss, per target.

    Its functions are a module's, so that it can be pickled for another process.

    Attributes:
        name: ``binary``, ``regression`` or ``classes``.
        num_outputs: the number of columns of the model's output.
        row_loss: ``(out [G, num_outputs], y) -> [G, ...]``, one value per target, also of padding
            and of missing ones.
        metric_name: the name of ``metric`` in tables.
        metric: maps the outputs and targets of real graphs, on the CPU, to a number; NaN where
            undefined.
    """

    name: str
    num_outputs: int
    row_loss: Callable[[Tensor, Tensor], Tensor]
    metric_name: str
    metric: Callable[[Tensor, Tensor], float]

    def __call__(self, out: Tensor, batch: Any) -> Tensor:
        """The loss per target; ``batch.y`` are the targets.

        Raises:
            ValueError: the model's output is not one row per graph with the task's columns.
        """
        if misfit := self.misfit(out, batch):
            raise ValueError(misfit)
        return self.row_loss(out, batch.y)

    def misfit(self, out: Any, batch: Any) -> str:
        """Why a model's output does not have the shape that loss and metric need; empty if it
        has."""
        rows, columns, name = len(batch.y), self.num_outputs, self.name
        if not isinstance(out, Tensor):
            return (
                f"the model gives a {type(out).__name__}, and its loss takes a tensor of "
                f"[{rows}, {columns}], a row per graph: return that alone"
            )
        if out.dim() == 0 or len(out) != rows:
            per_node = out.dim() > 0 and len(out) == len(batch.batch)
            remedy = "pool over nodes" if per_node else "keep a row per graph"
            remedy += ", as global_mean_pool(x, batch) does"
        else:
            width = out.numel() // len(out)
            # Of classes, a model may have more than the data.
            if width == columns or (width > columns and name == "classes"):
                return ""
            remedy = f"give its last layer {columns} for {name}"
        return (
            f"the model gives {list(out.shape)}, and its loss takes a row per graph, "
            f"[{rows}, {columns}] for this batch: {remedy}"
        )


def task_of(store: GraphStore, name: str = AUTO) -> Task:
    """The task that a store's ``y`` defines.

    Args:
        store: the result of :func:`staticgraph.datasets.open` for the same task.
        name: one of :data:`staticgraph.datasets.specs.TASKS`; it decides what the dtype
            leaves open: whether 0 and 1 are yes-no answers or numbers.

    Raises:
        BadGraph: there is no ``y``, it is not one row per graph, all its values are missing, or
            classes are negative.
    """
    if "y" not in store.schema:
        raise BadGraph(
            f"{store.name} has no target y: there is nothing to train on; give each "
            "graph its labels as y"
        )
    y, column = store.schema["y"], store.column("y")
    if y.level != "graph" or y.rows != 1 or len(y.shape) > 1:
        raise BadGraph(
            f"{store.name} has y as {y.describe()}; expected one row per graph, [1] for classes or "
            "[1, T] for T targets"
        )
    if np.dtype(y.dtype).kind == "f":
        labelled = column[~np.isnan(column)] if column.dtype.kind == "f" else column
        if not labelled.size:
            raise BadGraph(f"{store.name} has a target y, but every value of it is missing (NaN)")
        if name != "regression" and np.isin(labelled, (0, 1)).all():
            return Task("binary", y.width, _binary_loss, "ROC-AUC", roc_auc)
        return Task("regression", y.width, _squared_error, "RMSE", rmse)
    if y.width != 1 or column.min() < 0:
        raise BadGraph(
            f"{store.name} has y as {y.describe()} from {column.min()}; classes are one whole "
            "number per graph, counted from 0; give y as float for several yes-no questions"
        )
    return Task("classes", int(column.max()) + 1, _cross_entropy, "accuracy", accuracy)


def _binary_loss(out: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(out.view_as(y), y, reduction="none")


def _squared_error(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out.view_as(y), y, reduction="none")


def _cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y.view(-1).long(), reduction="none")


def mean_loss(row_loss: Callable[[Tensor, Tensor], Tensor], out: Tensor, y: Tensor) -> float:
    """The mean of a loss over the labelled targets of real graphs; NaN without any."""
    missing = torch.isnan(y)
    # Not nan_to_num, which also replaces infinities by the largest finite number.
    values = row_loss(out, torch.where(missing, 0, y))
    labelled = ~missing.view(values.shape)
    return float(values[labelled].double().mean())


def roc_auc(out: Tensor, y: Tensor) -> float:
    """The area under the ROC curve, the mean over targets with both answers (as in OGB).

    NaN if a score with a label is NaN, since it has no rank.
    """
    areas = []
    columns = (values.view(len(values), -1).unbind(1) for values in (out, y))
    for scores, answers in zip(*columns, strict=True):
        labelled = ~torch.isnan(answers)
        if scores[labelled].isnan().any():
            return math.nan
        if answers[labelled].unique().numel() == 2:
            order = scores[labelled].unique(return_inverse=True)[1]
            yes, no = (torch.bincount(order, (answers[labelled] == a).double()) for a in (1, 0))
            # Of each pair of a yes and a no: the yes is higher, or half of it where they tie.
            pairs = (yes * (no.cumsum(0) - no / 2)).sum()
            areas.append(float(pairs / (yes.sum() * no.sum())))
    return sum(areas) / len(areas) if areas else math.nan


def rmse(out: Tensor, y: Tensor) -> float:
    """The root of the mean squared error over all labelled targets; NaN without any."""
    return math.sqrt(mean_loss(_squared_error, out.double(), y.double()))


def accuracy(out: Tensor, y: Tensor) -> float:
    """The share of graphs whose largest output is that of their class; NaN if any output is NaN."""
    hits = (out.argmax(1) == y.view(-1)).double().mean()
    return math.nan if out.isnan().any() else float(hits)


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
