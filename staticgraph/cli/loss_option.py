"""``--loss module:name``, or the loss that a data set's target asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from staticgraph.steps.loss.mean_loss import Loss
    from staticgraph.store.graph_store import GraphStore


def loss_of(spec: str | None, store: GraphStore, task: str = "auto") -> tuple[Loss, int]:
    """The loss, and how many outputs a model of the zoo then needs.

    Args:
        spec: what ``--loss`` names, if anything.
        store: the data.
        task: what ``--task`` says of its target.

    Raises:
        BadGraph: none was named, and the data has no target that says what is meant.
        ValueError: the name leads nowhere.
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
