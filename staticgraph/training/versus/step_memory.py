"""The memory that a side holds, and what one training step adds at its peak.

On CUDA these come from the allocator: the memory that the side took from the driver when it was
made and prepared (including recordings and graphs on the device), and the peak that a step adds. A
CPU's allocator does not track its peak: there, parameters, buffers and optimizer state are counted,
and torch's profiler records the allocations of one step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from staticgraph.probing.allocator import Allocator, CudaAllocator
from staticgraph.probing.profiler import ProfilerAllocator
from staticgraph.probing.resident import distinct_bytes, state_bytes
from staticgraph.steps.state.training_state import untouched
from staticgraph.training.versus.side import Side


class StepMemory(NamedTuple):
    """The bytes that are held permanently, and those that a step adds at its peak."""

    held_bytes: int
    step_bytes: int

    @property
    def total_bytes(self) -> int:
        """The bytes at the peak of a step."""
        return self.held_bytes + self.step_bytes


def reserved_on(device: torch.device) -> int:
    """The bytes that torch reserves on a GPU, after freeing unused blocks; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    allocator = CudaAllocator(device)
    torch.cuda.synchronize(device)
    allocator.trim()
    return allocator.reserved()


def step_memory(side: Side, device: torch.device, before: int) -> StepMemory:
    """Measures one training step after a warmup; the side's training state is restored.

    Args:
        side: a prepared side, with a course.
        device: the device of the side.
        before: the value of :func:`reserved_on` before the side was made.
    """
    allocator: Allocator = CudaAllocator(device) if device.type == "cuda" else ProfilerAllocator()
    with untouched(side.model, side.optimizer), side.one_step() as step:
        step()
        if device.type == "cuda":
            held: Any = reserved_on(device) - before
        else:
            side.optimizer.zero_grad(set_to_none=True)  # or freeing old gradients lowers the result
            tensors = (*side.model.parameters(), *side.model.buffers())
            held = distinct_bytes(tensors) + state_bytes(side.optimizer)
        base = allocator.allocated()
        allocator.reset_peak()
        step()
        added = allocator.peak() - base
    return StepMemory(max(0, held), max(0, added))
