"""Reading a step over fake tensors: live storages are counted, without arithmetic or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.probing.fake_twin import fake_mode, fake_twin
from staticgraph.probing.live_storages import CUDA_BLOCK, LiveStorages
from staticgraph.probing.reading import WARM_STEPS, Probed, ProbeStep, Read, Reading
from staticgraph.sizes.capacity import Capacity

# cuBLAS takes 32 MiB per handle and stream on Hopper and later, 8.1 MiB before (torch's
# aten/src/ATen/cuda/CublasHandlePool.cpp); a recording is warmed up on a side stream, so two.
CUBLAS_WORKSPACES = 2 * (32 << 20)


class FakeTensorReader:
    """Counts live storages of a step over fake CPU tensors.

    Args:
        like: ``cpu`` counts bytes as the CPU allocates them. ``cuda`` rounds every storage up to
            the caching allocator's block, lets layers choose their kernels as on CUDA and the
            optimizer step over all parameters at once, and adds cuBLAS's workspaces.

    Raises:
        ValueError: ``like`` is neither.
    """

    def __init__(self, like: str = "cpu") -> None:
        if like not in ("cpu", "cuda"):
            raise ValueError(f"like={like!r}; choose 'cpu' or 'cuda'")
        self.like = like
        self.name = f"fake tensors, counted as on {like}"

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """Opens the model for reading; only fake copies of it run, and it is not touched."""
        yield _Steps(probed, self.like == "cuda").read


class _Steps:
    """Reads one step after another, each with a separate twin, so that nothing that a module caches
    at one capacity remains at the next.

    The first capacity is read warm. If its first step and its warm one have the same moments, other
    capacities are read from their first step, without the optimizer, whose update takes the same at
    every capacity. Each such step must leave nothing allocated but gradients, since the next one
    would find it; otherwise that capacity is read warm, too.
    """

    def __init__(self, probed: Probed, on_cuda: bool) -> None:
        self._probed, self._on_cuda = probed, on_cuda
        self._mode = fake_mode()
        self._update: int | None = None  # what the update adds, where first steps can be read

    def read(self, capacity: Capacity) -> Reading:
        """Reads one warm step at a capacity, or an equivalent first step."""
        if self._update is not None:
            with self._ready(capacity, updates=False) as (live, step):
                before = live.live_bytes
                reading = step()
                resident = live.live_bytes - before
            if not resident:
                return reading._replace(update=self._update)
        with self._ready(capacity, updates=True) as (_, step):
            first = warm = step()
            for _ in range(WARM_STEPS - 1):
                warm = step()
        pairs = ((first.moments, warm.moments), (first.operations, warm.operations))
        if all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs):
            self._update = warm.update
        return warm

    @contextmanager
    def _ready(
        self, capacity: Capacity, updates: bool
    ) -> Iterator[tuple[LiveStorages, Callable[[], Reading]]]:
        """Prepares a twin and its batch, counted, and a function that reads one step of them."""
        probed, subject = self._probed, self._probed.subject
        live = LiveStorages(CUDA_BLOCK if self._on_cuda else 1, casts=not self._on_cuda)
        stepped = subject.optimizer if updates else None
        model, optimizer = fake_twin(subject.model, stepped, self._mode)
        if optimizer is not None:
            _step_over_all_at_once(optimizer, self._on_cuda)
            optimizer.register_step_pre_hook(lambda *_: _allow(live, True))
            optimizer.register_step_post_hook(lambda *_: _allow(live, False))
        layout = probed.layout(capacity)
        with torch.random.fork_rng(devices=[]), self._mode:
            tensors = {
                e.name: torch.empty(e.shape, dtype=getattr(torch, e.dtype.name))
                for e in layout.entries
            }
            batch = StaticBatch(layout, tensors)
            twin = replace(subject, model=model, optimizer=optimizer)
            step = ProbeStep(twin, probed.accumulate, "cuda" if self._on_cuda else None)
            with live:
                live.watch([*model.parameters(), *model.buffers(), *tensors.values()])
                yield live, lambda: self._run(live, step, batch)

    def _run(self, live: LiveStorages, step: ProbeStep, batch: StaticBatch) -> Reading:
        """Reads a step and frees all gradients afterwards."""
        start = live.live_bytes
        live.reset_peak()
        passes, update = step(batch, between=live.reset_peak), live.peak_bytes
        if passes is None:  # an evaluation updates nothing
            passes, update = live.reset_peak(), start
        step.model.zero_grad()
        moments = np.array(passes[0], np.float64) - start
        operations = np.array(passes[1], np.int64)
        workspaces = CUBLAS_WORKSPACES if self._on_cuda else 0
        step_bytes, added = int(moments.max()), update - start
        return Reading(step_bytes, added, 0.0, workspaces, moments, operations, step.widths)


def _allow(live: LiveStorages, on: bool) -> None:
    live.reads_allowed = on


def _step_over_all_at_once(optimizer: torch.optim.Optimizer, on_cuda: bool) -> None:
    for group in optimizer.param_groups:
        if on_cuda and group.get("foreach", False) is None:
            group["foreach"] = True
