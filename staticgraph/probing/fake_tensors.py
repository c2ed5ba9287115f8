"""Reading a step over fake tensors: live storages are counted, without arithmetic or memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch

from staticgraph.probing.fake_twin import fake_batch, fake_mode, fake_twin, state_of
from staticgraph.probing.live_storages import CUDA_BLOCK, LiveStorages
from staticgraph.probing.step_reading import Probed, ProbeStep, Read, Reading
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
    """

    def __init__(self, like: Literal["cpu", "cuda"] = "cpu") -> None:
        self.like = like
        self.name = f"fake tensors, counted as on {like}"

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        """Opens the model for reading; only a fake copy of it runs, and it is not touched."""
        on_cuda, mode, subject = self.like == "cuda", fake_mode(), probed.subject
        model, optimizer = fake_twin(subject.model, subject.optimizer, mode)
        if optimizer is not None and on_cuda:
            _step_over_all_at_once(optimizer)
        twin = replace(subject, model=model, optimizer=optimizer)
        step = ProbeStep(twin, probed.accumulate, "cuda" if on_cuda else None)
        settled = False

        def read(capacity: Capacity) -> Reading:
            """Reads a warm step, which is a second one unless first ones were found to be alike."""
            nonlocal settled
            with torch.random.fork_rng(devices=[]), mode:
                batch = fake_batch(probed.layout(capacity))
                # Counted anew, since garbage of another capacity may be freed in this step.
                live = LiveStorages(CUDA_BLOCK if on_cuda else 1, casts=not on_cuda)
                with live:
                    live.watch([*model.parameters(), *model.buffers(), *batch.tensors().values()])
                    live.watch(state_of(optimizer))
                    reading = step.read(batch, live.live_bytes, live)
                    if not settled:
                        first, reading = reading, step.read(batch, live.live_bytes, live)
                        settled = first.moments == reading.moments
            return reading._replace(workspaces=CUBLAS_WORKSPACES if on_cuda else 0)

        yield read


def _step_over_all_at_once(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None:
            group["foreach"] = True
