"""Reads a step over fake tensors: live storages counted, no arithmetic, no memory taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.probing.fake_twin import fake_mode, fake_model, fake_optimizer
from staticgraph.probing.live_storages import CUDA_BLOCK, LiveStorages
from staticgraph.probing.reading import WARM_STEPS, Probed, Read, Reading
from staticgraph.probing.step import ProbeStep
from staticgraph.sizes.capacity import Capacity

# cuBLAS takes 32 MiB a handle and stream on Hopper and later, 8.1 MiB before (torch's
# aten/src/ATen/cuda/CublasHandlePool.cpp); a recording is warmed up on a side stream, so two.
CUBLAS_WORKSPACES = 2 * (32 << 20)


class FakeTensorReader:
    """Counts live storages of a step over fake CPU tensors.

    Args:
        like: ``cpu`` counts bytes as the CPU allocates them. ``cuda`` rounds every storage up to
            the caching allocator's block, lets layers choose their kernels as they do there and
            the optimizer step over all parameters at once, and charges cuBLAS's workspaces.
    """

    def __init__(self, like: str = "cpu") -> None:
        if like not in ("cpu", "cuda"):
            raise ValueError(f"like={like!r}; choose 'cpu' or 'cuda'")
        self.like = like
        self.name = f"fake tensors, counted as on {like}"

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """The model itself is not touched: a twin over fake tensors runs."""
        on_cuda, subject = self.like == "cuda", probed.subject
        mode = fake_mode()

        def read(capacity: Capacity) -> Reading:
            live = LiveStorages(CUDA_BLOCK if on_cuda else 1, casts=not on_cuda)
            model, twins = fake_model(subject.model, mode)
            optimizer = None
            if subject.optimizer is not None:
                optimizer = fake_optimizer(subject.optimizer, twins, mode)
                _step_over_all_at_once(optimizer, on_cuda)
                optimizer.register_step_pre_hook(lambda *_: _allow(live, True))
                optimizer.register_step_post_hook(lambda *_: _allow(live, False))
            layout = probed.layout(capacity)
            with torch.random.fork_rng(devices=[]), mode:
                tensors = {
                    e.name: torch.empty(e.shape, dtype=getattr(torch, e.dtype.name))
                    for e in layout.entries
                }
                batch = StaticBatch(layout, tensors, probed.real_counts(capacity))
                twin = replace(subject, model=model, optimizer=optimizer)
                step = ProbeStep(twin, probed.accumulate, "cuda" if on_cuda else None)
                with live:
                    live.watch([*model.parameters(), *model.buffers(), *tensors.values()])
                    for _ in range(WARM_STEPS - 1):
                        step(batch)
                    step.free_gradients()
                    start = live.live_bytes
                    live.reset_peak()
                    seen, update = step(batch, between=live.reset_peak), live.peak_bytes
            if seen is None:  # an evaluation updates nothing
                seen, update = live.reset_peak(), start
            moments, operations = seen
            added = np.array(moments, dtype=np.float64) - start
            workspaces = CUBLAS_WORKSPACES if on_cuda else 0
            ran = np.array(operations, dtype=np.int64)
            return Reading(int(added.max()), update - start, 0.0, workspaces, added, ran)

        yield read


def _allow(live: LiveStorages, on: bool) -> None:
    live.reads_allowed = on


def _step_over_all_at_once(optimizer: torch.optim.Optimizer, on_cuda: bool) -> None:
    for group in optimizer.param_groups:
        if on_cuda and group.get("foreach", False) is None:
            group["foreach"] = True
