"""Judging a model over a stream of static batches: real rows only, every graph once."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.training.tasks import Task, mean_loss


def evaluate(
    runner: StaticGraphRunner,
    batches: Iterable[StaticBatch],
    task: Task,
    ranks: Ranks | None = None,
) -> tuple[float, float]:
    """Mean loss and metric over all real graphs of some batches.

    The metric is of all outputs together: the mean of each batch's ROC-AUC would be another number,
    and so would the mean of each rank's. Several ranks put their outputs together, in the order of
    graphs, and have the same numbers, to the bit.

    Args:
        runner: of the model.
        batches: of this rank.
        task: says which loss and which metric.
        ranks: who has the other batches; each comes here.
    """
    outputs, targets, graph_ids = [], [], []
    for batch in batches:
        graphs = batch.num_graphs if batch.real is None else batch.real.graphs
        out = runner.eval_step(batch).out
        outputs.append(out[:graphs].to("cpu", copy=True))  # the memory of both is only lent
        targets.append(batch.y[:graphs].to("cpu", copy=True))
        graph_ids.append(batch.graph_ids[:graphs].to("cpu", copy=True))
    out, y = torch.cat(outputs), torch.cat(targets)
    if ranks is not None:
        order = torch.cat(ranks.gathered(torch.cat(graph_ids))).argsort()
        out, y = (torch.cat(ranks.gathered(mine))[order] for mine in (out, y))
    return mean_loss(task, out, y), task.metric(out, y)
