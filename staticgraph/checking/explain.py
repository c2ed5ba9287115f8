"""Which parts of a model run by an operator of this library, and what prevents the rest.

A copy of the model is captured over one padded batch, as mode ``fused`` captures it, and the graph
is rewritten (:mod:`staticgraph.rewrites`); the rewrites themselves report what they did. The given
model is not changed.

:class:`CapturedStep` is one step captured and rewritten, for inspection and counting.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.example_batch import batch_of
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.plans.plan import BucketPlan
from staticgraph.rewrites import Captured, RewriteTarget, rewrite
from staticgraph.rewrites.explain import Explanation
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.compilation.compiled_function import with_own_code
from staticgraph.steps.compilation.guards import drop_what_is_known
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.tracing.trace import tracing_options


class CapturedStep:
    """A step of one batch as mode ``fused`` runs it; a call runs it again over the same batch.

    torch.compile itself does not run inside a mode that counts operations; this does.

    Args:
        computation: the model's computation.
        work: ``forward`` or ``step``.
        batch: is given row pointers if it has none; one run over it changes everything that a step
            changes, except gradients.
    """

    def __init__(self, computation: Computation, work: str, batch: StaticBatch) -> None:
        if batch.layout.schema.has_pointers:
            batch = with_pointers(batch)
        self._captures: list[Captured] = []
        self._inputs: tuple[Any, ...] = ()
        self._device = batch.device.type
        self._function = with_own_code(computation.of_tensors(work, batch, leaves=True), "captured")
        call = torch.compile(self._function, fullgraph=True, dynamic=False, backend=self._take)
        with tracing_options(), Restored(nothing=True):
            self.result: Any = call(*batch.tensors().values())

    def _take(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self._captures.append(rewrite(graph, RewriteTarget(self._device, compiled=False), inputs))
        drop_what_is_known(self._function)

        def run(*tensors: Any) -> Any:
            """Keeps the inputs of a call and runs the graph on them."""
            self._inputs = tensors
            return graph.forward(*tensors)

        return run

    @property
    def captured(self) -> Captured:
        """The rewritten graph."""
        return self._captures[0]

    def __call__(self) -> Tensor:
        """Returns the first tensor of the result."""
        return self.captured.module.forward(*self._inputs)[0]


def explain(
    model: torch.nn.Module | Subject,
    plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
    example: Any = None,
    *,
    forward: Forward | None = None,
    loss: Loss | None = None,
) -> Explanation:
    """Shows what mode ``fused``, and compiled modes with kernels, rewrite of a model in training.

    Args:
        model: any PyG model, or a ``Subject``; it is not changed.
        plan: the buckets, or a plain list of capacities.
        example: graphs to capture it with, or a batch, as ``staticgraph.check`` takes them.
        forward, loss: as the runner takes them.

    Returns:
        The places that are rewritten, by the model's own lines, and those that nearly are, each
        with the one thing that prevented it. It prints as a table.

    Raises:
        TypeError: the example has no graphs.
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
    with Restored(nothing=True):
        computation.run(work, batch.to(subject.device))  # what it raises says more than a trace's
    return Explanation.of([CapturedStep(computation, work, batch.to(subject.device)).captured])
