"""Out of memory: recognised by its text, and handled at any stage of a probe without side effects;
the allocators that are read are left as they were."""

from __future__ import annotations

import gc

import pytest
import torch
from support.alike import adam, squared

from staticgraph import models
from staticgraph.errors import BudgetExceeded, ProbeFailed
from staticgraph.probing.allocator import AllocatorReader
from staticgraph.probing.live_storages import LiveStorages
from staticgraph.probing.out_of_memory import is_out_of_memory
from staticgraph.probing.probe import probe
from staticgraph.probing.step_reading import Probed
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject

SMALL = Capacity(100, 210, 6, 60)


# ---------------------------------------------------------------------- out of memory, by text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError(),
    ],
)
def test_out_of_memory_is_recognised(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("CUDA out of memory"),
        BudgetExceeded("the plan needs 3 GiB"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_are_not(error):
    assert not is_out_of_memory(error)


def test_a_real_failure_of_the_cpu_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


# ---------------------------------------------------------------------- an allocator that fails


class FailingAllocator(LiveStorages):
    """Counts real CPU tensors, keeps freed memory reserved like CUDA's, fails on demand."""

    name = "a test"
    by_operation = False

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.count = 0
        self._reserved = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.fail_at is not None and self.count == self.fail_at:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._reserved = max(self._reserved, self.peak_bytes)
        return out

    def allocated(self):
        return self.live_bytes

    def peak(self):
        return self.peak_bytes

    def reserved(self):
        return self._reserved

    def trim(self):
        self._reserved = self.live_bytes


def prepared(store):
    torch.manual_seed(0)
    model = models.build("gine", store, hidden=16, layers=1, dropout=0.5)
    optimizer = adam(model)
    return Probed(Subject(model, squared, optimizer), store.schema)


def run(task, store, allocator, **options):
    """Probes under the allocator; asserts that neither live nor reserved bytes grow."""
    with allocator:
        allocator.watch([*task.subject.model.parameters(), *task.subject.model.buffers()])
        allocator.trim()
        before = allocator.live_bytes, allocator.reserved()
        try:
            return probe(
                task.subject.model,
                store,
                loss=squared,
                optimizer=task.subject.optimizer,
                reader=AllocatorReader(allocator),
                **options,
            )
        finally:
            allocator.fail_at = None
            gc.collect()
            allocator.trim()
            assert allocator.live_bytes <= before[0], "bytes leaked"
            assert allocator.reserved() <= before[1], "the process is left poorer"


def stages(store):
    """The first and the last operation of a reading, its two warm steps included."""
    task, allocator = prepared(store), FailingAllocator()
    with allocator, AllocatorReader(allocator).open(task) as read:
        first = allocator.count + 1
        read(SMALL)
        return first, allocator.count


@pytest.mark.slow
def test_out_of_memory_at_every_stage_leaves_no_trace(esol):
    first, last = stages(esol)
    for stage in range(3):
        task = prepared(esol)
        weights = [p.detach().clone() for p in task.subject.model.parameters()]
        random = torch.get_rng_state()
        allocator = FailingAllocator()
        allocator.fail_at = first + (last - first) * stage // 2
        with pytest.raises(ProbeFailed, match=r"not even the smallest probe .*\(injected\)"):
            run(task, esol, allocator, capacities=[SMALL])
        assert all(map(torch.equal, task.subject.model.parameters(), weights)), stage
        assert all(p.grad is None for p in task.subject.model.parameters()), stage
        assert not task.subject.optimizer.state, stage
        assert torch.equal(torch.get_rng_state(), random), stage


class Workspace(torch.nn.Module):
    """Allocates memory at its first use and keeps it, as cuBLAS does."""

    def __init__(self, model):
        super().__init__()
        self.model, self.kept = model, {}

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        if not self.kept:
            self.kept["workspace"] = torch.zeros(25_000)
        return self.model(x, edge_index, edge_attr, batch, batch_size)


@pytest.mark.slow
def test_what_a_library_takes_and_keeps_is_told_apart(esol):
    task = prepared(esol)
    wrapped = Probed(
        Subject(Workspace(task.subject.model), squared, task.subject.optimizer), esol.schema
    )
    allocator = FailingAllocator()
    with allocator:
        allocator.watch([*wrapped.subject.model.parameters(), *wrapped.subject.model.buffers()])
        with AllocatorReader(allocator).open(wrapped) as read:
            readings = [read(SMALL), read(SMALL)]
    with allocator, AllocatorReader(allocator).open(task) as read:
        plain = read(SMALL)
    for reading in readings:
        assert reading.workspaces == pytest.approx(100_000, abs=2000)
        assert reading.step == pytest.approx(plain.step, rel=0.001)


def test_the_cuda_allocator_is_read_and_left_as_it_was(esol, place):
    """A second probe leaves nothing; the first leaves the memory that libraries keep."""
    task = prepared(esol)
    task.subject.model.to(place.device)
    held = []
    for _ in range(2 if place.cuda else 1):  # a CPU keeps nothing
        memory = probe(task.subject.model, esol, loss=squared, optimizer=task.subject.optimizer)
        held.append(place.held())
    assert memory.reader.startswith("the allocator of") == place.cuda
    assert held[-1] <= held[0]
    assert memory.fit.residual < 0.05
