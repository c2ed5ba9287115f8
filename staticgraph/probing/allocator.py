"""Reading real steps from an allocator's high-water mark, with everything restored afterwards.

The moment of a step that is its peak changes with the capacity, so one mark per step is not a sum
of counts where there are several such moments (attention with explicit weights and a long backward
through edges). An allocator that is cheap to query is therefore read after every operation, and the
marks in between are the step's moments, each with its own sum (:mod:`staticgraph.memory.fit`).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.probing.fake_tensors import distinct_bytes, state_bytes
from staticgraph.probing.step_reading import WARM_STEPS, Probed, Read, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.state.training_state import untouched


class ProfilerAllocator:
    """Bytes of the CPU, relative to the first recording."""

    name = "the CPU, by torch.profiler"
    by_operation = False  # each query ends one recording and begins another

    def __init__(self) -> None:
        self._live = 0
        self._profile: torch.profiler.profile | None = None

    def allocated(self) -> int:
        """The bytes in use now, counted from the first :meth:`reset_peak` on."""
        return self._live

    def reset_peak(self) -> None:
        """Starts recording."""
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        with _quiet():
            self._profile.start()

    def peak(self) -> int:
        """The most bytes in use since then; stops recording."""
        assert self._profile is not None, "reset_peak() begins to record"
        with _quiet():
            self._profile.stop()
        results: Any = getattr(self._profile.profiler, "kineto_results", None)
        self._profile = None
        changes = [event for event in results.events() if event.name() == "[memory]"]
        changes.sort(key=lambda event: event.start_ns())
        levels = list(accumulate((event.nbytes() for event in changes), initial=self._live))
        self._live = levels[-1]
        return max(levels)

    def reserved(self) -> int:
        """Returns 0: the CPU reserves nothing."""
        return 0

    def trim(self) -> None:
        """Does nothing, since the CPU reserves nothing."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences stderr: torch 2.13's profiler writes a line to it whenever it starts or stops."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


class CudaAllocator:
    """torch's caching allocator on one CUDA device."""

    by_operation = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name: str = torch.cuda.get_device_name(device)

    def allocated(self) -> int:
        """The bytes in use now, after the queued work is done."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device)

    def reset_peak(self) -> None:
        """Resets the high-water mark."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most bytes in use since the last reset; known on the host without synchronizing."""
        return torch.cuda.max_memory_allocated(self.device)

    def reserved(self) -> int:
        """The bytes taken from the driver."""
        return torch.cuda.memory_reserved(self.device)

    def trim(self) -> None:
        """Returns unused memory to the driver."""
        torch.cuda.empty_cache()


# What an :class:`AllocatorReader` reads; ``by_operation``: after every operation of a step.
Allocator = ProfilerAllocator | CudaAllocator


class AllocatorReader:
    """Runs real steps, on the model itself, and reads an allocator's high-water mark."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.name: str = f"the allocator of {allocator.name}"

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """Opens the model for reading; afterwards its state and the random state are restored, also
        the classes of its layers, and no state where there was none, and reserved memory is
        returned. Values are saved on the host, so that saving them does not affect the reading."""
        subject, optimizer = probed.subject, probed.subject.optimizer
        kinds = [(module, type(module)) for module in subject.model.modules()]
        stepped = optimizer is not None and bool(optimizer.state)
        gc.collect()
        self.allocator.trim()
        try:
            with untouched(subject.model, optimizer, beside=subject.functions):
                base = self.allocator.allocated() - state_bytes(optimizer)
                try:
                    yield lambda capacity: self._read(probed, capacity, base)
                finally:
                    for module, kind in kinds:
                        module.__class__ = kind
                    if optimizer is not None and not stepped:
                        optimizer.state.clear()
        finally:
            gc.collect()
            self.allocator.trim()

    def _read(self, probed: Probed, capacity: Capacity, base: int) -> Reading:
        """Reads one warm step; ``base`` was in use before, without the optimizer's state."""
        allocator, subject = self.allocator, probed.subject
        try:
            batch = StaticBatch.blank(probed.layout(capacity), subject.device)
            batch.real = None
            step = replace(probed)  # its last batch is released with it
            for _ in range(WARM_STEPS):
                step.passes(batch)
                step.update()
            subject.model.zero_grad()
            allocator.trim()
            start = allocator.allocated()
            peaks = Peaks(allocator)
            with peaks if allocator.by_operation else nullcontext():
                reading = step.read(batch, start, peaks)
            most = max(1, start + reading.step, start + reading.update)
            # What a warm step leaves that is neither state nor batch was allocated by libraries.
            resident = (
                base + state_bytes(subject.optimizer) + distinct_bytes(batch.tensors().values())
            )
            return reading._replace(
                overhead=max(0.0, allocator.reserved() / most - 1),
                workspaces=max(0, start - resident),
            )
        finally:
            subject.model.zero_grad()
            allocator.trim()


class Peaks(TorchDispatchMode):
    """An allocator's high-water mark of a part of a step.

    As a ``with`` block, it also reads the mark of each operation, including temporary memory inside
    it: ``moments``.
    """

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self._allocator = allocator
        self.moments: list[tuple[Any, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.moments.append((func, self._allocator.peak()))
        self._allocator.reset_peak()
        return out

    def reset_peak(self, update: bool = False) -> None:
        """Begins a part."""
        self.moments = []
        self._allocator.reset_peak()

    def peak(self) -> int:
        """The highest mark since then."""
        return max([self._allocator.peak(), *(peak for _, peak in self.moments)])
