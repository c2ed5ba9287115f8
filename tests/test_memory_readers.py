"""Live storages against an obvious count; an allocator that fails at every stage of a probe."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from staticgraph import models
from staticgraph.errors import BudgetExceeded, ProbeFailed
from staticgraph.kernels.linear import available
from staticgraph.probing.allocator import AllocatorReader
from staticgraph.probing.live_storages import LiveStorages
from staticgraph.probing.out_of_memory import is_out_of_memory
from staticgraph.probing.probe import probe
from staticgraph.probing.profiler import ProfilerAllocator
from staticgraph.probing.reading import Probed
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.subject import Subject

SMALL = Capacity(100, 210, 6, 60)


# ---------------------------------------------------------------------- live storages


def test_views_and_in_place_operations_are_not_counted_twice():
    live = LiveStorages()
    with live:
        a = torch.zeros(1000)
        assert live.live_bytes == 4000
        b = a.view(10, 100)[3:5]
        a.add_(1)
        assert live.live_bytes == 4000
        c = a + 1
        assert live.live_bytes == live.peak_bytes == 8000
        del a
        assert live.live_bytes == 8000, "b still holds it"
        del b
        assert live.live_bytes == 4000
        del c
        assert (live.live_bytes, live.peak_bytes) == (0, 8000)


def test_what_autograd_saves_is_live_until_the_backward():
    live = LiveStorages()
    x = torch.ones(1000, requires_grad=True)
    with live:
        live.watch([x])
        loss = (x.exp().sin() * 2).sum()  # sin keeps its input, exp its output: one storage
        assert live.live_bytes == 4000 + 4000 + 4
        loss.backward()
        del loss
        assert live.live_bytes == 4000 + 4000  # x and its gradient
        x.grad = None
        assert live.live_bytes == 4000


def test_blocks_round_up_and_resizing_is_followed():
    live = LiveStorages(block=512)
    with live:
        a = torch.zeros(1)
        assert live.live_bytes == 512
        a.resize_(1000)
        assert live.live_bytes == 4096


@pytest.mark.skipif(not available(), reason="this torch has no mkldnn._linear_pointwise")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("inputs", [32, 300])
def test_what_a_fused_linear_layer_takes_inside_is_what_the_profiler_saw(relu, inputs):
    """Counted over fake tensors, whose operator takes nothing inside, and over real ones: of a
    small layer, and of one whose weight's gradient is the library's."""

    def peak(count, mode):
        with mode:
            x, weight = torch.ones(4096, inputs), torch.ones(64, inputs)
            grad, out = torch.ones(4096, 64), torch.ones(4096, 64) if relu else None
            with count:
                count.reset_peak()
                torch.ops.staticgraph.linear_backward(grad, x, weight, out, None)
        return count.peak() if isinstance(count, _Profiled) else count.peak_bytes

    counted, seen = (
        peak(LiveStorages(casts=True), FakeTensorMode()),
        peak(_Profiled(), nullcontext()),
    )
    assert abs(counted / seen - 1) < 0.02


@pytest.mark.parametrize("apart", [False, True])
def test_what_the_way_from_blocks_to_rows_takes_inside_is_what_the_profiler_saw(apart):
    """A copy of one block, and not of all of them, where heads lie apart."""

    def peak(count, mode):
        with mode:
            shapes = [(6, 4, 40, 8), (30, 4, 20, 8)]
            blocks = [
                torch.ones(g, m, h, d).transpose(1, 2) if apart else torch.ones(g, h, m, d)
                for g, h, m, d in shapes
                for _ in range(3)
            ]
            places = sum(g * m for g, _, m, _ in shapes)
            node_of_place = torch.arange(places)
            with count:
                count.reset_peak()
                torch.ops.staticgraph.head_rows(blocks, node_of_place, node_of_place, 3)
        return count.peak() if isinstance(count, _Profiled) else count.peak_bytes

    peak(_Profiled(), nullcontext())  # compiles
    counted = peak(LiveStorages(casts=True), FakeTensorMode())
    seen = peak(_Profiled(), nullcontext())
    rows, block = 840 * 96 * 4, 30 * 20 * 32 * 4
    assert counted == rows + apart * block
    assert abs(counted / seen - 1) < 0.02


@pytest.mark.parametrize("heads_first", [False, True])
def test_what_attentions_backward_takes_inside_is_what_the_profiler_saw(heads_first):
    """A gradient that comes from blocks of heads is copied; PyG's own lies as it is wanted."""

    def peak(count, mode):
        with mode:
            made = [
                torch.ones(64, 4, 40, 8)
                if heads_first
                else torch.ones(64, 40, 4, 8).transpose(1, 2)
                for _ in range(4)
            ]
            grad, q, k, v = made
            out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
            with count, torch.no_grad():
                count.reset_peak()
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grad, q, k, v, out, sums, 0.0, False
                )
        return count.peak() if isinstance(count, _Profiled) else count.peak_bytes

    counted = peak(LiveStorages(casts=True), FakeTensorMode())
    seen = peak(_Profiled(), nullcontext())
    each = 64 * 40 * 32 * 4
    assert counted == (3 + heads_first) * each
    assert abs(counted / seen - 1) < 0.03


class _Profiled(ProfilerAllocator):
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


def test_operands_cast_to_a_common_dtype_are_counted_where_asked():
    narrow, wide = torch.ones(1000, dtype=torch.bfloat16), torch.ones(1000)
    for casts, extra in ((True, 4000), (False, 0)):
        live = LiveStorages(casts=casts)
        with live:
            live.watch([narrow, wide])
            kept = narrow * wide
            assert live.peak_bytes == 2000 + 4000 + 4000 + extra
            assert live.live_bytes == 2000 + 4000 + 4000
            torch.where(kept > 0, narrow, narrow)
            assert live.peak_bytes == 2000 + 4000 + 4000 + max(extra, 1000 + 2000)
            del kept


def test_a_limit_is_torchs_own_error():
    with LiveStorages(limit_bytes=100), pytest.raises(torch.OutOfMemoryError, match="limit is 100"):
        torch.zeros(26)


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
    """Counts real CPU tensors, keeps what is freed in reserve like CUDA's, fails on demand."""

    name = "a test"
    by_operation = False

    def __init__(self, fail_at: int | None = None, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes=limit_bytes)
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


def squared(out, batch):
    return (out - batch.y).square()


def prepared(store):
    torch.manual_seed(0)
    model = models.build("gine", store, hidden=16, layers=1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters())
    return Probed(Subject(model, squared, optimizer), store.schema)


def run(task, store, allocator, **options):
    """Probes under the allocator; what is live and reserved, before and after."""
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
    for stage in range(8):
        task = prepared(esol)
        weights = [p.detach().clone() for p in task.subject.model.parameters()]
        random = torch.get_rng_state()
        allocator = FailingAllocator()
        allocator.fail_at = first + (last - first) * stage // 7
        with pytest.raises(ProbeFailed, match=r"not even the smallest probe .*\(injected\)"):
            run(task, esol, allocator, capacities=[SMALL])
        assert all(map(torch.equal, task.subject.model.parameters(), weights)), stage
        assert all(p.grad is None for p in task.subject.model.parameters()), stage
        assert not task.subject.optimizer.state, stage
        assert torch.equal(torch.get_rng_state(), random), stage


@pytest.mark.slow
def test_a_tight_limit_is_met_with_smaller_probes(esol):
    task, allocator = prepared(esol), FailingAllocator(limit_bytes=1_000_000)
    memory = run(task, esol, allocator)
    assert allocator.peak_bytes <= 1_500_000
    assert all(point.nbytes <= 1_000_000 for point in memory.points)
    assert memory.reader == "the allocator of a test"


@pytest.mark.slow
def test_the_allocators_reading_is_the_fake_tensors(esol):
    """Two of the three ways over the same step: they must tell the same bytes."""
    task = prepared(esol)
    capacities = [
        Capacity(150 + 40 * k, 310 + 70 * (k % 3), 8 + k % 2, 60 - 9 * k) for k in range(6)
    ]
    real = run(task, esol, FailingAllocator(), capacities=capacities)
    fake = probe(
        task.subject.model,
        esol,
        loss=squared,
        optimizer=task.subject.optimizer,
        reader="fake",
        capacities=capacities,
    )
    for one, other in zip(real.points, fake.points, strict=True):
        assert one.nbytes == pytest.approx(other.nbytes, rel=0.001)
    assert real.update_bytes == pytest.approx(fake.update_bytes, rel=0.01)
    assert real.overhead >= 0
    assert real.workspace_bytes < 1000, "no library keeps memory on a CPU"


class Workspace(torch.nn.Module):
    """Takes memory at its first use and keeps it, as cuBLAS does."""

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
    """A second probe leaves nothing; the first leaves what libraries keep for the process."""
    task = prepared(esol)
    task.subject.model.to(place.device)
    held = []
    for _ in range(2 if place.cuda else 1):  # a CPU's keeps nothing
        memory = probe(task.subject.model, esol, loss=squared, optimizer=task.subject.optimizer)
        held.append(place.held())
    assert memory.reader.startswith("the allocator of") == place.cuda
    assert held[-1] <= held[0]
    assert memory.fit.residual < 0.05


def test_a_linear_layer_alone_by_hand():
    """One linear layer and SGD, every byte derived: an oracle with no model in it."""
    rows, width = 100, 8

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(width, width, bias=False)

    model = Alone()
    x = torch.zeros(rows, width)
    live = LiveStorages()
    with live:
        live.watch([x, *model.parameters()])
        start = live.live_bytes
        model.linear(x).square().sum().backward()
    activation, weight = 4 * rows * width, 4 * width * width
    assert start == activation + weight
    # At the peak: the layer's output kept for the square, the gradient of the square's output
    # (expanded, no bytes of its own), two factors of its derivative.
    assert live.peak_bytes - start >= 2 * activation
    assert live.live_bytes - start == weight, "only the gradient of the weight is left"
