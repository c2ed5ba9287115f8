"""What a side holds, and what one training step of it adds at the peak.

On CUDA the allocator tells: what making and preparing the side took from the driver (recordings
and graphs on the device included), and what a step adds to that. A CPU's allocator has no
high-water mark: there parameters, buffers and optimizer state are counted, and torch's profiler
records the allocations of one step.
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
    """Bytes: held all the time, and added by a step at its peak."""

    held_bytes: int
    step_bytes: int

    @property
    def total_bytes(self) -> int:
        """At the peak of a step."""
        return self.held_bytes + self.step_bytes


def reserved_on(device: torch.device) -> int:
    """What is taken from the driver of a GPU and in use; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    allocator = CudaAllocator(device)
    torch.cuda.synchronize(device)
    allocator.trim()
    return allocator.reserved()


def step_memory(side: Side, device: torch.device, before: int) -> StepMemory:
    """Reads one warm training step; the side's training is as before afterwards.

    Args:
        side: prepared, on a course.
        device: it runs on.
        before: :func:`reserved_on` before the side was made.
    """
    allocator: Allocator = CudaAllocator(device) if device.type == "cuda" else ProfilerAllocator()
    with untouched(side.model, side.optimizer), side.one_step() as step:
        step()
        if device.type == "cuda":
            held: Any = reserved_on(device) - before
        else:
            side.optimizer.zero_grad(set_to_none=True)  # a gradient that is freed counts for less
            tensors = (*side.model.parameters(), *side.model.buffers())
            held = distinct_bytes(tensors) + state_bytes(side.optimizer)
        base = allocator.allocated()
        allocator.reset_peak()
        step()
        added = allocator.peak() - base
    return StepMemory(max(0, held), max(0, added))
