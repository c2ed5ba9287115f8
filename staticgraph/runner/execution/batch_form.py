"""What a batch must be for a runner's steps, and the form in which they take it.

A batch carries row pointers where something reads them: a model with this library's kernels always
does, a step that is rewritten to them does while it is rewritten, and any other step must not be
given more arrays than it was compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.runner.execution.execution import Execution
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject


class BatchForm:
    """The form of the batches of one runner.

    Args:
        subject: what is run.
        computation: of the subject; knows whether its layers are rewritten.
        capacities: of the buckets.
        execution: in which ways the buckets may run.

    Attributes:
        capacities: as given.
        fused: whether a way in use is rewritten to this library's operators.
    """

    def __init__(
        self,
        subject: Subject,
        computation: Computation,
        capacities: Sequence[Capacity],
        execution: Execution,
    ) -> None:
        self.fused: bool = execution.mode.fused
        self.capacities: Sequence[Capacity] = capacities
        self._computation = computation
        self._device: torch.device = subject.device
        self._pointers = subject.pointers
        self._tries_fused = execution.tries_fused
        self._may_rewrite = execution.tries_fused or self.fused or computation.context.kernels

    @property
    def rewrites(self) -> bool:
        """Whether any way that is run here is rewritten to this library's operators."""
        return self.fused or self._computation.context.kernels

    def layout(self, bucket: int, schema: Schema) -> SlotLayout:
        """The arrays of a bucket's batches."""
        reads = self.rewrites or self._tries_fused
        pointers = self._pointers or (reads and not schema.hetero)
        return SlotLayout(bucket, self.capacities[bucket], schema, pointers)

    def accept(self, batch: StaticBatch) -> StaticBatch:
        """A batch as the steps take it: with pointers if the model reads them, else without.

        Raises:
            TypeError: it is no batch of fixed shape.
            ValueError: it belongs to no bucket of these, is on another device than the model, or
                lacks the pointers.
        """
        if not isinstance(batch, StaticBatch):
            raise TypeError(
                f"a step takes a StaticBatch, as StaticLoader(store, plan) gives them, not a "
                f"{type(batch).__name__}; runner.predict(graphs) takes a list of Data"
            )
        if self._computation.newcomers.came:
            self._computation.settle()
        layout, bucket = batch.layout, batch.bucket
        known = self.capacities[bucket] if bucket < len(self.capacities) else None
        if layout.capacity is not known and layout.capacity != known:
            raise ValueError(
                f"the batch belongs to bucket {bucket} of {layout.capacity}, which is not in "
                "this runner's plan: give the loader and the runner the same plan"
            )
        if batch.device.type != self._device.type:
            raise ValueError(
                f"the batch is on {batch.device}, the model on {self._device}: pass "
                f"StaticLoader(..., device={str(self._device)!r}), or batch.to(...); a model is "
                "moved before its runner is made"
            )
        if self._pointers is layout.pointers and (self._pointers or not self._may_rewrite):
            return with_pointers(batch) if self._pointers else batch
        if self._pointers:
            raise ValueError(
                "the model was converted with kernels=True, which read row pointers, but the batch "
                "carries none: make it with StaticLoader(..., pointers=True), or with "
                "StaticBatch.of(..., pointers=True)"
            )
        return self._as_way_takes(batch)

    def _as_way_takes(self, batch: StaticBatch) -> StaticBatch:
        """A batch of a model none of whose layers reads pointers: a rewritten step does."""
        if not self.rewrites or batch.layout.schema.hetero:
            # A compiled step has the arrays it was made for.
            return batch.without_pointers()
        return with_pointers(batch)
