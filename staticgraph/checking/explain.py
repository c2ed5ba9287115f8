"""Which parts of a model run by an operator of this library, and what prevents the rest.

A copy of the model is captured over one padded batch, as mode ``fused`` captures it, and the graph
is rewritten (:mod:`staticgraph.rewrites`); the rewrites themselves report what they did. The given
model is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.example_batch import batch_of
from staticgraph.plans.plan import BucketPlan
from staticgraph.rewrites.captured_graph.captured import Rewritten
from staticgraph.rewrites.explain import Explanation
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.captured_step import CapturedStep
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_arguments import Forward
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.store.graph_store import GraphStore

ORDERED = Rewritten(
    "every rewrite over edges",
    "",
    "",
    "edges keep their order (keep_order=True, or a Padder without sort_edges=True), and the "
    "operators take edges sorted by destination",
)


def explain(
    model: torch.nn.Module | Subject,
    plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
    example: GraphStore | StaticBatch | None = None,
    *,
    forward: Forward | None = None,
    loss: Loss | None = None,
) -> Explanation:
    """Shows what mode ``fused``, and compiled modes with kernels, rewrite of a model in training.

    Args:
        model: any PyG model, or a ``Subject``; it is not changed.
        plan: the buckets, or a plain list of capacities.
        example: graphs to capture it with, or a batch; without one, graphs are made up from the
            plan's schema.
        forward, loss: as the runner takes them.

    Returns:
        The places that are rewritten, by the model's own lines, and those that nearly are, each
        with the one thing that prevented it. It prints as a table.

    Raises:
        TypeError: the example is neither a store nor a batch.
        ValueError: there is neither an example nor a plan that knows the fields of the data.
        GraphTooLarge: no graph of the example fits a bucket.
        TorchDynamoException: the model cannot be captured; ``staticgraph.check`` says why.
    """
    plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
    batch = batch_of(plan, example)
    subject = Subject.of(model, forward=forward, loss=loss)
    subject = replace(subject, model=copy.deepcopy(subject.model).train(), optimizer=None)
    computation = Computation(subject)
    work = "forward" if subject.loss is None else "step"
    found = Explanation.of([CapturedStep(computation, work, batch.to(subject.device)).captured])
    missed = (*found.missed, *([ORDERED] if batch.layout.schema.keep_order else []))
    return replace(found, missed=missed)
