"""The steps that are read, the contents of a reading, and the interface of readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.nn.context.bound_batch import present
from staticgraph.nn.context.device_choice import choosing
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import evaluating

# Steps before the one that is read: the first creates the optimizer's state, the second shows the
# allocator (and cuBLAS, which allocates its workspace at first use) the whole cycle.
WARM_STEPS = 2


@dataclass(eq=False)
class Probed:
    """The step that a reader runs, of a model over data of one kind.

    Gradients are freed, then forward and backward run ``accumulate`` times, then the optimizer.

    Attributes:
        subject: the model and how it is trained. Without a loss one evaluation without gradients is
            read, without an optimizer only forward and backward.
        schema: the fields of the data.
        accumulate: backward passes per step of the optimizer.
        device: attention paths are chosen for it where the tensors stand in for those of another
            device.
        widths: of the dense blocks that layers requested in the last forward.
    """

    subject: Subject
    schema: Schema
    accumulate: int = 1
    device: str | None = None
    widths: tuple[int, ...] = field(default=(), init=False)

    def layout(self, capacity: Capacity) -> SlotLayout:
        """The arrays of a batch of this capacity."""
        return SlotLayout(0, capacity, self.schema, self.subject.pointers)

    @cached_property
    def _computation(self) -> Computation:
        computation = Computation(self.subject)
        computation.assume_rows()  # only the step itself is measured
        return computation

    def _forward(self, work: str, batch: StaticBatch) -> torch.Tensor:
        with self._computation.active():
            result = self._computation.run(work, batch, keep=True)
            binding = present()
            assert binding is not None
            self.widths = tuple(sorted({width for _, width in binding.blocks}))
        return result

    def passes(self, batch: StaticBatch) -> None:
        """Runs forward and backward, or an evaluation."""
        with choosing(self.device):
            if self.subject.loss is None:
                with evaluating(self.subject.model):
                    self._forward("forward", batch)
                return
            self.subject.model.train()
            self.subject.model.zero_grad()
            for _ in range(self.accumulate):
                self._forward("step", batch).backward()  # unnamed: freed before the update

    def update(self) -> None:
        """Steps the optimizer, if there is something to train."""
        if self.subject.loss is not None and self.subject.optimizer is not None:
            self.subject.optimizer.step()

    def read(self, batch: StaticBatch, start: int, memory: StepMemory) -> Reading:
        """Runs the step, reads it, and frees all gradients.

        Args:
            batch: what it runs over.
            start: the bytes in use before.
            memory: reads the bytes of its two parts.
        """
        memory.reset_peak()
        self.passes(batch)
        step, moments = memory.peak(), memory.moments
        memory.reset_peak(update=True)
        self.update()
        update = memory.peak()
        self.subject.model.zero_grad()
        return Reading(
            step - start,
            update - start if self.subject.loss is not None else 0,
            moments=[(operation, live - start) for operation, live in moments],
            widths=self.widths,
        )


class StepMemory(Protocol):
    """Reads the bytes in use, part by part.

    Attributes:
        moments: after each operation of this part; empty where this is not known.
    """

    moments: list[tuple[Any, int]]

    def reset_peak(self, update: bool = False) -> None:
        """Begins a part; ``update``: it is the optimizer's step."""
        ...

    def peak(self) -> int:
        """The most in this part, which ends now."""
        ...


class Reading(NamedTuple):
    """The memory of one warm step, in bytes.

    Attributes:
        step: what forward and backward added, at the peak, to model, optimizer state and batch.
        update: what the optimizer's step had added at its peak, gradients included.
        overhead: reserved over allocated bytes at the peak, minus one.
        workspaces: of libraries, where the reader knows them.
        moments: each operation, in order, and what had been added after it; empty where the reader
            does not know.
        widths: places per graph of the dense blocks that its layers requested, where the reader
            knows them.
    """

    step: int
    update: int = 0
    overhead: float = 0.0
    workspaces: int = 0
    moments: Sequence[tuple[Any, int]] = ()
    widths: tuple[int, ...] = ()


Read = Callable[[Capacity], Reading]


class MemoryReader(Protocol):
    """Opens a model for reading."""

    name: str

    def open(self, probed: Probed) -> AbstractContextManager[Read]:
        """Yields a function that reads one step at a capacity; restores everything at the end."""
        ...
