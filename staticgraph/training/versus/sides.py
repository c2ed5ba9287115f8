"""The sides of a comparison: plain PyG, well tuned, and this library in one of its modes.

All sides start from the same weights and train on the same graphs in the same batches and order,
with the same optimizer; only the batching and the execution of the step differ. Plain PyG has its
DataLoader with the fastest number of workers, fused Adam, sizes passed to a model that takes them,
and pinned memory on CUDA.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.loader import DataLoader

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.plain_batch import PlainBatch, ReadBatch, plain_loss
from staticgraph.epochs.batcher import Batcher
from staticgraph.nn.convert import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.allocator import Allocator, CudaAllocator, ProfilerAllocator
from staticgraph.probing.resident import distinct_bytes, state_bytes
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.schema import Schema
from staticgraph.steps.compilation.modes import MODES
from staticgraph.steps.computation.model_arguments import Forward
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss, LossTerms
from staticgraph.steps.state.training_state import untouched
from staticgraph.store.graph_store import GraphStore
from staticgraph.training.parts import adam, source_of


@dataclass(frozen=True, slots=True, eq=False)
class VersusSetting:
    """The setting of a comparison.

    Attributes:
        model: the untrained model, on the CPU; only copies of it are run.
        loss: one value per row, as a runner takes it.
        forward: how the model is called.
        train_ids: the graphs to train on.
        batch_size: graphs per batch.
        lr: learning rate of Adam.
        seed: seed of the order of graphs and of random numbers.
    """

    model: torch.nn.Module
    store: GraphStore
    plan: BucketPlan
    loss: Loss
    forward: Forward
    train_ids: np.ndarray
    batch_size: int
    device: torch.device
    lr: float = 1e-3
    seed: int = 0

    def fresh_model(self) -> torch.nn.Module:
        """A copy of the model, in training mode on the device."""
        return copy.deepcopy(self.model).to(self.device).train()

    def course(self, batches: int) -> Course:
        """The first ``batches`` batches of the first epoch of a training."""
        batcher = Batcher(
            self.store.sizes, self.plan, indices=self.train_ids, exact=True, shuffle=True,
            seed=self.seed,
        )  # fmt: skip
        order = [batch.ids.tolist() for batch in islice(batcher.epoch(0), batches)]
        return Course(order, {i: self.store[i] for ids in order for i in ids})


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """The batches of a turn: the ids of each batch, and the graphs as PyG objects."""

    order: list[list[int]]
    graphs: dict[int, Any]

    @property
    def num_graphs(self) -> int:
        """The number of graphs in all batches together."""
        return sum(map(len, self.order))


@dataclass(frozen=True, slots=True)
class Filling:
    """Real rows over physical rows, 0 to 1."""

    nodes: float
    edges: float
    graphs: float


def fields_with_gaps(schema: Schema) -> tuple[str, ...]:
    """The floating-point fields with missing values."""
    return tuple(f.name for f in schema if f.has_nan and f.dtype.startswith("float"))


class _Labels(ReadBatch):
    """A batch with zeros in place of NaN in some fields."""

    def __init__(self, data: PlainBatch, gaps: Sequence[str]) -> None:
        super().__init__(data)
        self.__dict__["_gaps"] = gaps

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return torch.where(torch.isnan(value), 0, value) if name in self._gaps else value

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, name)


def plain_mean(loss: Loss, out: Any, data: PlainBatch, gaps: Sequence[str]) -> Tensor:
    """The mean of a loss over an unpadded batch, 0-dim; entries of the fields ``gaps`` that are
    missing are left out of it and of its gradient."""
    if not gaps:
        return plain_loss(loss, out, data)
    rows: Any = _Labels(data, gaps)
    terms = LossTerms.of(loss(out, rows))
    labels = [data[name] for name in gaps if name in rows.read()]
    if not labels:
        return terms.mean()
    known = torch.ones_like(terms.values, dtype=torch.bool)
    for label in labels:
        if label.numel() == known.numel():
            known &= ~torch.isnan(label).view(known.shape)
    shares = known.to(terms.values.dtype)
    if terms.weights is not None:
        shares = shares * terms.weights.to(shares.dtype).expand(shares.shape)
    return terms.add_to(torch.where(known, terms.values * shares, 0).sum() / shares.sum())


class Side:
    """Trains a copy of the model over the batches of a course, in turns.

    Attributes:
        name: the name in the report.
        model, optimizer: those of this side alone.
        course: the batches of the next turns.
    """

    def __init__(self, setting: VersusSetting, name: str, kernels: bool | None = None) -> None:
        self.setting: VersusSetting = setting
        self.name: str = name
        model = setting.fresh_model()
        self.model: torch.nn.Module = model if kernels is None else convert(model, kernels=kernels)
        self.optimizer: torch.optim.Optimizer = adam(self.model, setting.lr, setting.device)
        self.course: Course = Course([], {})

    def prepare(self) -> None:
        """Does what is done once, before the first step."""

    def begin(self, course: Course) -> None:
        """Sets the course of the following turns."""
        self.course = course

    def batches(self) -> Generator[Any]:
        """The batches of the course, on the device."""
        raise NotImplementedError

    def step(self, batch: Any) -> Tensor:
        """Trains on a batch, and returns its loss, 0-dim."""
        raise NotImplementedError

    def turn(self) -> Tensor:
        """Trains over the course once, and returns the losses ``[batches]``."""
        losses = torch.stack([self.step(batch) for batch in self.batches()])
        if losses.is_cuda:
            torch.cuda.synchronize(losses.device)
        return losses

    @contextmanager
    def one_step(self) -> Iterator[Callable[[], Tensor]]:
        """Yields a function that runs a training step on the first batch of the course."""
        with closing(self.batches()) as batches:
            batch = next(batches)
            yield lambda: self.step(batch)

    def filling(self) -> Filling:
        """The filling of the training batches so far; plain PyG has no padding."""
        return Filling(1.0, 1.0, 1.0)

    def close(self) -> None:
        """Frees processes and recordings."""


class PlainSide(Side):
    """Trains by a standard PyG loop, perhaps under ``torch.compile(dynamic=True)``."""

    def __init__(self, setting: VersusSetting, compiled: bool = False) -> None:
        super().__init__(setting, "PyG, compiled" if compiled else "PyG")
        self.workers: int = 0
        self._call: Any = torch.compile(self.model, dynamic=True) if compiled else self.model
        self._gaps = fields_with_gaps(setting.store.schema)
        self._loader: Any = None

    def begin(self, course: Course) -> None:
        """Sets the course of the following turns."""
        super().begin(course)
        self.take_workers(self.workers)

    def take_workers(self, workers: int) -> None:
        """Sets the number of collating processes."""
        self.close()
        self.workers, graphs = workers, self.course.graphs
        data: Any = [graphs.get(i) for i in range(max(graphs) + 1)]  # at their ids in the store
        order: Any = self.course.order
        self._loader = DataLoader(
            data, batch_sampler=order, num_workers=workers, persistent_workers=workers > 0,
            pin_memory=self.setting.device.type == "cuda",
        )  # fmt: skip

    def batches(self) -> Generator[Any]:
        """The batches of the course, on the device."""
        for data in self._loader:
            yield PlainBatch(data.to(self.setting.device, non_blocking=True))

    def step(self, batch: Any) -> Tensor:
        """Trains on a batch, and returns its loss, 0-dim."""
        self.optimizer.zero_grad(set_to_none=True)
        out = self.setting.forward(self._call, batch)
        loss = plain_mean(self.setting.loss, out, batch, self._gaps)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def close(self) -> None:
        """Ends the collating processes."""
        self._loader = None


KERNELS = "+kernels"
# Modes to which kernels add nothing: eager captures no graph, and the others consist of them.
NO_KERNELS = ("eager", "fused", "auto")
ON_CPU = ("eager", "fused")
ON_CUDA = (
    *("eager", "default", "default+kernels", "reduce-overhead"),
    *("cuda-graph", "cuda-graph+kernels"),
)


def mode_and_kernels(name: str) -> tuple[str, bool]:
    """A mode of the runner, and whether it has the fused kernels, from a name like
    ``default+kernels``.

    Raises:
        ValueError: there is no such mode.
    """
    mode = name.removesuffix(KERNELS)
    if mode not in MODES or (mode in NO_KERNELS and mode != name):
        with_kernels = [m + KERNELS for m in MODES if m not in NO_KERNELS]
        raise ValueError(
            f"there is no mode {name!r} to try; choose one of {', '.join(MODES)}, and "
            f"{', '.join(with_kernels)}"
        )
    return mode, mode != name


class StaticSide(Side):
    """Trains in fixed shapes, in a mode named as for :func:`mode_and_kernels`."""

    def __init__(self, setting: VersusSetting, name: str) -> None:
        mode, kernels = mode_and_kernels(name)
        super().__init__(setting, name, kernels)
        subject = Subject(self.model, setting.loss, self.optimizer, setting.forward)
        self.runner: StaticGraphRunner = StaticGraphRunner(
            subject, setting.plan, mode, distributed="off"
        )
        self._source = source_of("auto", setting.store, setting.device, subject.pointers)
        self._loader: StaticLoader = self.runner.loader(
            self._source, indices=setting.train_ids, exact=True, shuffle=True, seed=setting.seed
        )

    def prepare(self) -> None:
        """Compiles and records the training step of every bucket.

        Raises:
            NotStatic: the model cannot run with fixed shapes in this mode.
            PaddingLeaks: padding reaches real rows.
        """
        self.runner.warmup(self._source, phases=("step",), progress=False)

    def batches(self) -> Generator[Any]:
        """The batches of the course, on the device."""
        self._loader.set_epoch(0)
        with closing(iter(self._loader)) as batches:
            yield from islice(batches, len(self.course.order))

    def step(self, batch: Any) -> Tensor:
        """Trains on a batch, and returns its loss, 0-dim."""
        return self.runner.step(batch)

    def filling(self) -> Filling:
        """The filling of the training batches so far."""
        buckets = [b for b in self.runner.report().buckets if b.batches]
        shares = []
        for rows in ("node", "edge", "graph"):
            physical = [getattr(b, f"{rows}s") * b.batches for b in buckets]
            real = [getattr(b, f"{rows}_efficiency") or 0.0 for b in buckets]
            shares.append(float(np.dot(physical, real)) / max(1, sum(physical)))
        return Filling(*shares)

    def close(self) -> None:
        """Frees the recordings."""
        self.runner.close()


@dataclass(frozen=True, slots=True)
class StepMemory:
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

    ``before`` is what :func:`reserved_on` returned before the side was made.
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
