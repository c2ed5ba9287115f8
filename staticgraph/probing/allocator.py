"""Reads real steps off an allocator's high-water mark, and puts everything back.

Which moment of a step is its peak changes with the capacity, so one mark a step is no sum of counts
where there are several (attention with explicit weights beside a long way back through edges). An
allocator that can be asked at little cost is therefore asked after every operation, and the marks
in between are the step's moments, each a sum by itself (:mod:`staticgraph.memory.fit`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.nn.context.turns import Turn, watched
from staticgraph.probing.reading import WARM_STEPS, Probed, Read, Reading, blocks_of
from staticgraph.probing.resident import distinct_bytes, state_bytes
from staticgraph.probing.step import ProbeStep
from staticgraph.sizes.capacity import Capacity


class Allocator(Protocol):
    """What an :class:`AllocatorReader` asks; all numbers are bytes.

    Attributes:
        name: whose allocator.
        by_operation: whether it is asked after every operation of a step.
    """

    name: str
    by_operation: bool

    def allocated(self) -> int:
        """In use now."""
        ...

    def reset_peak(self) -> None:
        """Forgets the high-water mark."""
        ...

    def peak(self) -> int:
        """The most in use since then."""
        ...

    def reserved(self) -> int:
        """Taken from the driver, in use or not."""
        ...

    def trim(self) -> None:
        """Gives back to the driver what is not in use."""
        ...


class CudaAllocator:
    """torch's caching allocator on one CUDA device."""

    by_operation = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name: str = torch.cuda.get_device_name(device)

    def allocated(self) -> int:
        """In use now, the queued work done."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device)

    def reset_peak(self) -> None:
        """Forgets the high-water mark."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most in use since then; what is allocated is known to the host, without waiting."""
        return torch.cuda.max_memory_allocated(self.device)

    def reserved(self) -> int:
        """Taken from the driver."""
        return torch.cuda.memory_reserved(self.device)

    def trim(self) -> None:
        """Gives back what is not in use."""
        torch.cuda.empty_cache()


class AllocatorReader:
    """Runs real steps, on the model itself, and reads an allocator's high-water mark."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.name: str = f"the allocator of {allocator.name}"

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """Parameters, buffers, gradients, optimizer state, flags, classes of layers and random
        state are put back, and reserved memory returned."""
        gc.collect()
        self.allocator.trim()
        try:
            subject = probed.subject
            with unchanged(subject.model, subject.optimizer):
                base = self.allocator.allocated() - state_bytes(subject.optimizer)
                yield lambda capacity: self._read(probed, capacity, base)
        finally:
            gc.collect()
            self.allocator.trim()

    def _read(self, probed: Probed, capacity: Capacity, base: int) -> Reading:
        """One warm step; ``base`` was in use before, without the optimizer's state."""
        allocator, subject = self.allocator, probed.subject
        try:
            batch = StaticBatch.blank(probed.layout(capacity), subject.device)
            batch.real = probed.real_counts(capacity)
            step = ProbeStep(subject, probed.accumulate)
            for _ in range(WARM_STEPS):
                step(batch)
            step.free_gradients()
            allocator.trim()
            start = allocator.allocated()
            peaks = Peaks(allocator)
            allocator.reset_peak()
            watch = peaks if allocator.by_operation else nullcontext()
            with watch, watched(peaks.take):
                step(batch, between=peaks.ended)
            updates = len(peaks.parts) > 0
            peaks.ended(last=True)
            peak, update = peaks.parts[0], peaks.parts[-1] if updates else start
            overhead = allocator.reserved() / max(1, peak, update) - 1
            # What a warm step leaves behind that is neither state nor batch: libraries took it.
            known = base + state_bytes(subject.optimizer) + distinct_bytes(batch.tensors().values())
            return Reading(
                peak - start,
                update - start,
                max(0.0, overhead),
                max(0, start - known),
                np.array(peaks.moments, np.float64) - start if peaks.moments else None,
                np.array(peaks.operations, np.int64) if peaks.moments else None,
                step.widths,
                tuple(peaks.turns),
                blocks_of(peaks.turns),
            )
        finally:
            subject.model.zero_grad(set_to_none=True)
            allocator.trim()


class Peaks(TorchDispatchMode):
    """An allocator's high-water mark of each part of a step and, as a ``with`` block, of each
    operation.

    Attributes:
        parts: the mark of each part that has ended.
        moments: of the first part, the mark of each operation; with what it took and freed inside.
        operations: a number for each of them, the same for the same operation.
        turns: the block that each of them is for, inside a loop over blocks.
    """

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self._allocator = allocator
        self._seen: list[int] = []
        self.parts: list[int] = []
        self.moments: list[int] = []
        self.operations: list[int] = []
        self.turns: list[Turn | None] = []
        self._turn: Turn | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self._seen.append(self._allocator.peak())
        self._allocator.reset_peak()
        if not self.parts:
            self.operations.append(hash(func))
            self.turns.append(self._turn)
        return out

    def take(self, turn: Turn | None) -> None:
        """What follows is for this block."""
        self._turn = turn

    def ended(self, last: bool = False) -> None:
        """The present part ends; another begins, unless it was the last."""
        if not self.parts:
            self.moments = self._seen
        self.parts.append(max([*self._seen, self._allocator.peak()]))
        self._seen = []
        if not last:
            self._allocator.reset_peak()


@contextmanager
def unchanged(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Puts a model and its optimizer back exactly: the same tensors with the same values, the same
    classes of layers, no state where there was none.

    Values are kept on the host, so that saving them changes nothing that is measured.
    """
    modules = [(m, type(m), m.training, set(vars(m))) for m in model.modules()]
    values = [(t, _kept(t)) for t in (*model.parameters(), *model.buffers())]
    gradients = [(p, p.grad) for p in model.parameters()]
    groups, state = [], {}
    if optimizer is not None:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        state = {
            p: {k: (v, _kept(v)) for k, v in found.items()} for p, found in optimizer.state.items()
        }
    devices = list({p.device.index for p in model.parameters() if p.is_cuda})
    for parameter, _ in gradients:
        parameter.grad = None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in values:
                    tensor.copy_(value)
                _restore_optimizer(optimizer, groups, state)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, kind, training, names in modules:
                module.__class__, module.training = kind, training
                for added in set(vars(module)) - names:
                    del vars(module)[added]


def _kept(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _restore_optimizer(
    optimizer: torch.optim.Optimizer | None,
    groups: list[dict[str, Any]],
    state: dict[Tensor, dict[str, tuple[Any, Any]]],
) -> None:
    if optimizer is None:
        return
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        group.update(values)
    optimizer.state.clear()
    for parameter, values in state.items():
        for name, (value, kept) in values.items():
            if isinstance(value, Tensor):
                value.copy_(kept)
            optimizer.state[parameter][name] = value
