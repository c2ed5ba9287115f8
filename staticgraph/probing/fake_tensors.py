"""Reading a step over fake tensors: live storages are counted, without arithmetic or memory.

The step runs on a twin of the model and its optimizer that has every shape and no bytes, so that
the real model is neither touched nor doubled. Its fake tensors claim to be on the CPU even where
the model is on CUDA: fake CUDA tensors that require grad abort the process in a build of torch
without CUDA, unless it is the process of a dry run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.internals.fakes import FakeTensorMode
from staticgraph.memory.memory_model import ResidentBytes
from staticgraph.probing.live_storages import CUDA_BLOCK, LiveStorages
from staticgraph.probing.step_reading import Probed, Read, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import require_shapes

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
        on_cuda, subject = self.like == "cuda", probed.subject
        # Real tensors that a module keeps outside its parameters and buffers count as their shapes.
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        model, optimizer = fake_twin(subject.model, subject.optimizer, mode)
        for group in optimizer.param_groups if optimizer is not None and on_cuda else ():
            if group.get("foreach", False) is None:
                group["foreach"] = True
        twin = replace(subject, model=model, optimizer=optimizer)
        step = replace(probed, subject=twin, device="cuda" if on_cuda else None)
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


def fake_twin(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    mode: FakeTensorMode,
    device: str = "cpu",
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Copies of a model and its optimizer over fake tensors of a device.

    An optimizer is copied as pickle would, so neither hooks nor a scheduler's wrapper of ``step``,
    which would step the real one, are copied with it.

    Raises:
        ValueError: a lazy module's parameters have no shape yet, or the optimizer has parameters
            that are not the model's.
    """
    require_shapes(model)
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        like = _like(parameter, mode, device)
        memo[id(parameter)] = torch.nn.Parameter(like, requires_grad=parameter.requires_grad)
    if optimizer is not None:
        for group in optimizer.param_groups:
            if strangers := [p for p in group["params"] if id(p) not in memo]:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(strangers[0].shape)} that the "
                    "model has not: give the optimizer that was made with model.parameters()"
                )
    tensors = [*model.buffers(), *state_of(optimizer)]
    memo |= {id(tensor): _like(tensor, mode, device) for tensor in tensors}
    twin, stepper = copy.deepcopy((model, optimizer), memo)
    if stepper is not None and device == "cpu":
        for group in stepper.param_groups:
            group.update(_on_the_host(group))
    return twin, stepper


def fake_batch(layout: SlotLayout, device: Any = "cpu") -> StaticBatch:
    """A batch with the arrays of a slot; must be called inside the fake mode."""
    tensors = {
        entry.name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype.name), device=device)
        for entry in layout.entries
    }
    return StaticBatch(layout, tensors)


def state_of(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """The tensors of an optimizer's current state."""
    states = optimizer.state.values() if optimizer is not None else ()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def _on_the_host(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options without those that require a device: a fused kernel (which needs no extra
    memory), step counters on the device, a learning rate in a tensor."""
    options = {k: float(v) if isinstance(v, Tensor) else v for k, v in group.items()}
    if options.get("fused"):
        options["foreach"] = False
    return {**options, **{k: False for k in ("fused", "capturable") if k in options}}


def _like(tensor: Tensor, mode: FakeTensorMode, device: str) -> Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def resident_bytes(subject: Subject) -> ResidentBytes:
    """The bytes that a model in training keeps after a step, computed on a fake twin."""
    parameters = list(subject.model.parameters())
    trained = [p for p in parameters if p.requires_grad] if subject.loss is not None else []
    optimizer = 0
    if subject.optimizer is not None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        _, twin = fake_twin(subject.model, subject.optimizer, mode)
        assert twin is not None
        live = LiveStorages()
        with mode, live:
            for group in twin.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.empty_like(parameter)
            live.reset_peak(update=True)
            twin.step()
        optimizer = state_bytes(twin)
    return ResidentBytes(
        distinct_bytes(parameters),
        distinct_bytes(subject.model.buffers()),
        distinct_bytes(trained),
        optimizer,
    )


def state_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of an optimizer's current state."""
    return distinct_bytes(state_of(optimizer))


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, each counted once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
