"""What of a model runs by an operator of this library, and what stands in the way of the rest.

A copy of the model is captured over one padded batch, as mode ``fused`` captures it, and the graph
is rewritten (:mod:`staticgraph.rewrites`); what the rewrites say of themselves is the answer.
Nothing of the model that was given changes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.pointers import with_pointers
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.checking.example_batch import batch_of
from staticgraph.nn.context.present import Restored
from staticgraph.plans.choose import BucketPlan
from staticgraph.rewrites import Target, rewrite
from staticgraph.rewrites.explain import Explanation
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.arguments import Forward
from staticgraph.steps.compiled import with_own_code
from staticgraph.steps.computation import Computation
from staticgraph.steps.losses import Loss
from staticgraph.steps.subject import Subject
from staticgraph.steps.tracing import tracing_options
from staticgraph.store.graph_store import GraphStore


def explain(
    model: torch.nn.Module | Subject,
    plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
    example: GraphStore | StaticBatch | None = None,
    *,
    forward: Forward | None = None,
    loss: Loss | None = None,
) -> Explanation:
    """What mode ``fused``, and compiled modes with kernels, rewrite of a model in training.

    Args:
        model: any PyG model, or a :class:`staticgraph.Subject`; it is not changed.
        plan: the buckets, or a plain list of capacities.
        example: graphs to capture it with; made up from the plan's schema where there are none.
        forward, loss: as the runner takes them.

    Returns:
        The places that are rewritten, by the model's own lines, and those that nearly are, each
        with the one thing that stood in the way. It prints as a table.

    Raises:
        ValueError: neither an example nor a plan that knows the fields of the data.
        TorchDynamoException: the model cannot be captured; ``staticgraph.preflight`` says why.
    """
    plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
    batch = batch_of(plan, example)
    subject = Subject.of(model, forward=forward, loss=loss)
    subject = replace(subject, model=copy.deepcopy(subject.model).train(), optimizer=None)
    batch = batch.to(subject.device)
    if not batch.layout.schema.hetero:
        batch = with_pointers(batch)
    work = "forward" if subject.loss is None else "step"
    computation = Computation(subject)
    computation.assume_rows()
    function = computation.of_tensors(work, batch, leaves=True)
    found = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        found.append(rewrite(graph, Target(subject.device.type, compiled=False)))
        return graph.forward

    with tracing_options(), Restored(nothing=True):
        own = with_own_code(function, "explained")
        torch.compile(own, fullgraph=True, dynamic=False, backend=look)(*batch.tensors().values())
    return Explanation.of(found)
