"""``--loss module:name``, or the default loss for a data set's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from staticgraph.steps.loss.mean_loss import Loss
    from staticgraph.store.graph_store import GraphStore


def loss_of(spec: str | None, store: GraphStore, task: str = "auto") -> tuple[Loss, int]:
    """The loss, and the number of outputs that a model of the zoo then needs.

    Args:
        spec: the value of ``--loss``, if given.
        store: the data.
        task: the value of ``--task``.

    Raises:
        BadGraph: no loss was given, and the data has no target that defines a task.
        ValueError: the name is not that of a loss function.
    """
    from staticgraph.errors import BadGraph
    from staticgraph.training.task_loss import TaskLoss, named_loss
    from staticgraph.training.tasks import task_of

    if spec:
        return named_loss(spec), 1
    try:
        asked = task_of(store, task)
    except BadGraph as error:
        raise BadGraph(
            f"{error}; or give --loss MODULE:NAME, which is loss(out, batch), one value per row"
        ) from None
    return TaskLoss(asked), asked.num_outputs
