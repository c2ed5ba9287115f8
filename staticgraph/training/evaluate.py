"""Evaluates a model over a stream of static batches: real rows only, every graph once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.training.tasks import Task, TaskLoss, mean_loss


@dataclass(slots=True)
class _Judged:
    """Outputs and targets of the real graphs of several batches."""

    outputs: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    graph_ids: list[Tensor] = field(default_factory=list)

    def add(self, out: Tensor, batch: StaticBatch) -> None:
        """Adds copies of a batch's rows, since the memory of batch and output is reused."""
        graphs = _graphs_of(batch)
        self.outputs.append(out[:graphs].to("cpu", copy=True))
        self.targets.append(batch.y[:graphs].to("cpu", copy=True))
        self.graph_ids.append(batch.graph_ids[:graphs].to("cpu", copy=True))

    def together(self, ranks: Ranks | None) -> tuple[Tensor, Tensor]:
        """All outputs and targets; those of several ranks are in the order of graphs."""
        out, y = torch.cat(self.outputs), torch.cat(self.targets)
        if ranks is not None:
            order = torch.cat(ranks.gathered(torch.cat(self.graph_ids))).argsort()
            out, y = (torch.cat(ranks.gathered(rows))[order] for rows in (out, y))
        return out, y


def evaluate(
    runner: StaticGraphRunner,
    batches: Iterable[StaticBatch],
    task: Task,
    ranks: Ranks | None = None,
) -> tuple[float, float]:
    """The mean loss and the metric over all real graphs of the batches.

    The metric is computed on all outputs together: the mean over batches or over ranks of a ROC-AUC
    would be a different number. Several ranks gather their outputs, in the order of graphs, and get
    results that are equal bit for bit.

    Args:
        runner: the runner of the model.
        batches: the batches of this rank.
        task: defines the loss and the metric.
        ranks: the processes with the other batches; each must call this.
    """
    judged = _Judged()
    for batch in batches:
        judged.add(runner.eval_step(batch).out, batch)
    out, y = judged.together(ranks)
    return mean_loss(task, out, y), task.metric(out, y)


def evaluate_own_loss(
    runner: StaticGraphRunner,
    batches: Iterable[StaticBatch],
    task: Task,
    ranks: Ranks | None = None,
) -> tuple[float, float]:
    """Like :func:`evaluate`, with the runner's own loss: the mean over batches, weighted by their
    number of graphs. The metric is NaN if the outputs do not have the shape of the task's."""
    judged, fits, all_fit = _Judged(), TaskLoss(task).fits, True
    sums = torch.zeros(1, 2, dtype=torch.float64)
    for batch in batches:
        out, loss = runner.eval_step(batch)
        graphs = _graphs_of(batch)
        sums += torch.tensor([[graphs * float("nan" if loss is None else loss), graphs]])
        all_fit = all_fit and fits(out, batch)
        if all_fit:
            judged.add(out, batch)
    if ranks is not None:
        sums = torch.cat(ranks.gathered(sums)).sum(0, keepdim=True)
        all_fit = ranks.all(all_fit)
    total, count = sums[0].tolist()
    return total / count, task.metric(*judged.together(ranks)) if all_fit else math.nan


def _graphs_of(batch: StaticBatch) -> int:
    return batch.num_graphs if batch.real is None else batch.real.graphs
