"""``--loss module:name``, or the loss that a data set's target asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from staticgraph.steps.losses import Loss
    from staticgraph.store.graph_store import GraphStore


def loss_of(spec: str | None, store: GraphStore) -> tuple[Loss, int]:
    """The loss, and how many outputs a model of the zoo then needs.

    Raises:
        BadGraph: none was named, and the data has no target that says what is meant.
        ValueError: the name leads nowhere.
    """
    from staticgraph.errors import BadGraph
    from staticgraph.models.named import function_named
    from staticgraph.training.tasks import BatchLoss, task_of

    if spec:
        return function_named(spec, "--loss"), 1
    try:
        task = task_of(store)
    except BadGraph as error:
        raise BadGraph(
            f"{error}; or give --loss MODULE:NAME, which is loss(out, batch), one value per row"
        ) from None
    return BatchLoss(task.row_loss), task.num_outputs
