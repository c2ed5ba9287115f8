"""What a runner's steps require of a batch, and the form in which they take it.

A batch carries row pointers where something reads them: a step that is rewritten to this library's
kernels does; any other compiled step must not be given more arrays than it was compiled for.
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
    """Checks the batches of one runner and brings them into the form that its steps take.

    Args:
        subject: the model, and how it is run.
        computation: the subject's computation; it knows whether its layers are rewritten.
        capacities: one per bucket.
        execution: the ways in which the buckets may run.

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
        """Whether any way that runs here is rewritten to this library's operators."""
        return self.fused or self._computation.context.kernels

    def layout(self, bucket: int, schema: Schema) -> SlotLayout:
        """The layout of a bucket's batches."""
        reads = self.rewrites or self._tries_fused
        pointers = self._pointers or (reads and schema.has_pointers)
        return SlotLayout(bucket, self.capacities[bucket], schema, pointers)

    def accept(self, batch: StaticBatch) -> StaticBatch:
        """Returns a batch as the steps take it: with row pointers only if they are read.

        Raises:
            TypeError: the batch is not a :class:`StaticBatch`.
            ValueError: the batch belongs to none of these buckets, or is on another device than
                the model.
        """
        if not isinstance(batch, StaticBatch):
            raise TypeError(
                "a step takes PyG's Batch, a list of Data, or a StaticBatch, as a StaticLoader and "
                f"sg.Padder(plan, schema=...) give them, not a {type(batch).__name__}"
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
        if self._pointers:
            return with_pointers(batch)
        if not layout.pointers and not self._may_rewrite:
            return batch
        return self._as_way_takes(batch)

    def _as_way_takes(self, batch: StaticBatch) -> StaticBatch:
        """Adds or removes row pointers for a model whose own layers do not read them."""
        if not (self.rewrites and batch.layout.schema.has_pointers):
            # A compiled step takes exactly the arrays that it was compiled with.
            return batch.without_pointers()
        return with_pointers(batch)
