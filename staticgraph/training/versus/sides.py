"""The sides of a comparison: plain PyG, well tuned, and this library in one of its modes.

All sides start from the same weights and train on the same graphs in the same batches and order,
with the same optimizer; only the batching and the execution of the step differ. Plain PyG has its
DataLoader with the fastest number of workers, fused Adam, sizes passed to a model that takes them,
and pinned memory on CUDA.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.plain_batch import PlainBatch
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
from staticgraph.store.on_device import DeviceStore, fits, is_simple


@dataclass(frozen=True, slots=True, eq=False)
class VersusSetting:
    """The setting of a comparison.

    Attributes:
        model: the untrained model, on the CPU; only copies of it are run.
        store: the graphs.
        plan: the fixed shapes.
        loss: one value per row, as a runner takes it.
        forward: how the model is called.
        train_ids: the graphs to train on.
        batch_size: graphs per batch.
        device: the device of all sides.
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

    def adam(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer, the same for all sides: torch's fused Adam."""
        on_cuda = self.device.type == "cuda"
        return torch.optim.Adam(model.parameters(), lr=self.lr, fused=True, capturable=on_cuda)

    @property
    def most_batches(self) -> int:
        """The number of full batches in an epoch, at least 1."""
        return max(1, len(self.train_ids) // self.batch_size)

    def course(self, batches: int) -> Course:
        """A course of the first ``batches`` batches of the first epoch of a training."""
        batcher = Batcher(
            self.store.sizes,
            self.plan,
            indices=self.train_ids,
            exact=True,
            shuffle=True,
            seed=self.seed,
        )
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

    @property
    def data(self) -> list[Data | None]:
        """The graphs at their positions in the store, for a sampler of ids."""
        return [self.graphs.get(i) for i in range(max(self.graphs) + 1)]


class Filling(NamedTuple):
    """Real rows over physical rows, 0 to 1."""

    nodes: float
    edges: float
    graphs: float


def fields_with_gaps(schema: Schema) -> tuple[str, ...]:
    """The floating-point fields with missing values."""
    return tuple(f.name for f in schema if f.has_nan and f.dtype.startswith("float"))


class _Labels(PlainBatch):
    """A batch with zeros in place of NaN in some fields, which records the ones that are read."""

    def __init__(self, data: PlainBatch, gaps: Sequence[str]) -> None:
        super().__init__(data)
        self.__dict__.update(_gaps=gaps, _read=[])

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name in self.__dict__["_gaps"]:
            self.__dict__["_read"].append(name)
            value = torch.nan_to_num(value, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        return value

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, name)


def plain_mean(loss: Loss, out: Any, data: PlainBatch, gaps: Sequence[str]) -> Tensor:
    """The mean of a loss over an unpadded batch, 0-dim.

    Args:
        loss: the loss, as a runner takes it.
        out: the model's output.
        data: the batch.
        gaps: the fields with missing values.
    """
    rows: Any = _Labels(data, gaps) if gaps else data
    terms = LossTerms.of(loss(out, rows))
    if not gaps or not rows.__dict__["_read"]:
        return terms.mean()
    known = torch.ones_like(terms.values, dtype=torch.bool)
    for name in rows.__dict__["_read"]:
        label = data[name]
        if label.numel() == known.numel():
            known &= ~torch.isnan(label).view(known.shape)
    shares = known.to(terms.values.dtype)
    if terms.weights is not None:
        shares = shares * terms.weights.to(shares.dtype).expand(shares.shape)
    mean = torch.where(known, terms.values * shares, 0).sum() / shares.sum()
    return terms.add_to(mean)


class PlainSide:
    """Trains a copy of the model with a standard PyG training loop.

    Args:
        setting: the setting of the comparison.
        compiled: run the model under ``torch.compile(dynamic=True)``.
    """

    def __init__(self, setting: VersusSetting, compiled: bool = False) -> None:
        self.setting = setting
        self.name = "PyG, compiled" if compiled else "PyG"
        self.workers: int = 0
        self.model: torch.nn.Module = setting.fresh_model()
        self.optimizer: torch.optim.Optimizer = setting.adam(self.model)
        self._call: Any = torch.compile(self.model, dynamic=True) if compiled else self.model
        self._gaps = fields_with_gaps(setting.store.schema)
        self._loader: Any = None
        self._course: Course | None = None

    def prepare(self) -> None:
        """Does nothing."""

    def begin(self, course: Course) -> None:
        """Sets the course of the following turns."""
        self._course = course
        self._load()

    def take_workers(self, workers: int) -> None:
        """Sets the number of collating processes."""
        self.workers = workers
        self._load()

    def _load(self) -> None:
        self.close()
        if self._course is not None:
            self._loader = DataLoader(
                self._course.data,  # pyright: ignore[reportArgumentType]
                batch_sampler=self._course.order,  # pyright: ignore[reportArgumentType]
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                pin_memory=self.setting.device.type == "cuda",
            )

    def turn(self) -> Tensor:
        """Trains over the course once, and returns the losses ``[batches]``."""
        losses = []
        for data in self._loader:
            data = data.to(self.setting.device, non_blocking=True)
            losses.append(self._step(PlainBatch(data)))
        losses_of_turn = torch.stack(losses)
        if losses_of_turn.is_cuda:
            torch.cuda.synchronize(losses_of_turn.device)
        return losses_of_turn

    def _step(self, data: PlainBatch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        rows: Any = data
        out = self.setting.forward(self._call, rows)
        loss = plain_mean(self.setting.loss, out, data, self._gaps)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @contextmanager
    def one_step(self) -> Iterator[Callable[[], Tensor]]:
        """Yields a function that runs a training step on the first batch of the course."""
        data = next(iter(DataLoader(self._first(), batch_size=len(self._first()))))
        data = PlainBatch(data.to(self.setting.device))
        yield lambda: self._step(data)

    def _first(self) -> list[Any]:
        assert self._course is not None
        return [self._course.graphs[i] for i in self._course.order[0]]

    def filling(self) -> Filling:
        """All rows are real, since there is no padding."""
        return Filling(1.0, 1.0, 1.0)

    def close(self) -> None:
        """Ends the collating processes."""
        self._loader = None


KERNELS = "+kernels"
# Modes to which kernels add nothing: eager captures no graph, and the others consist of them.
NO_KERNELS = ("eager", "fused", "auto")
# The share of a GPU's free memory that the data set may take.
SHARE_FOR_DATA = 0.25
ON_CPU = ("eager", "fused")
ON_CUDA = (
    *("eager", "default", "default+kernels", "reduce-overhead"),
    *("cuda-graph", "cuda-graph+kernels"),
)


class Way(NamedTuple):
    """A mode of the runner, with or without the fused kernels, named like ``default+kernels``."""

    mode: str
    kernels: bool

    @classmethod
    def of(cls, name: str) -> Way:
        """Parses a name.

        Raises:
            ValueError: there is no such mode.
        """
        mode = name.removesuffix(KERNELS)
        if mode not in MODES or (mode in NO_KERNELS and mode != name):
            known = [m for m in MODES if m not in NO_KERNELS]
            raise ValueError(
                f"there is no mode {name!r} to try; choose one of {', '.join(MODES)}, and "
                f"{', '.join(m + KERNELS for m in known)}"
            )
        return cls(mode, mode != name)


def ways_on(device_type: str) -> tuple[str, ...]:
    """The default modes for a device type."""
    return ON_CUDA if device_type == "cuda" else ON_CPU


class StaticSide:
    """Trains a copy of the model with fixed shapes.

    Args:
        setting: the setting of the comparison.
        name: the mode; see :class:`Way`.

    Raises:
        ValueError: there is no such mode, or it cannot run on this device.
    """

    setting: VersusSetting
    name: str

    def __init__(self, setting: VersusSetting, name: str) -> None:
        self.setting, self.name = setting, name
        way = Way.of(name)
        self.model: torch.nn.Module = convert(setting.fresh_model(), kernels=way.kernels)
        self.optimizer: torch.optim.Optimizer = setting.adam(self.model)
        subject = Subject(
            self.model, loss=setting.loss, optimizer=self.optimizer, forward=setting.forward
        )
        self.runner: StaticGraphRunner = StaticGraphRunner(
            subject, setting.plan, way.mode, distributed="off"
        )
        self._source = self._moved(subject.pointers)
        self._loader: StaticLoader | None = None
        self._batches = 0

    def _moved(self, pointers: bool) -> GraphStore | DeviceStore:
        """The store, moved to the device if that is a GPU with enough free memory."""
        store, device = self.setting.store, self.setting.device
        if device.type != "cuda" or not is_simple(store):
            return store
        if not fits(store, device, SHARE_FOR_DATA, pointers):
            return store
        return store.to(device, pointers=pointers)

    def prepare(self) -> None:
        """Compiles and records the training step of every bucket.

        Raises:
            NotStatic: the model cannot run with fixed shapes in this mode.
            PaddingLeaks: padding reaches real rows.
        """
        self.runner.warmup(self._source, phases=("step",), progress=False)

    def begin(self, course: Course) -> None:
        """Sets the course of the following turns."""
        setting = self.setting
        self._batches = len(course.order)
        self._loader = self.runner.loader(
            self._source, indices=setting.train_ids, exact=True, shuffle=True, seed=setting.seed
        )

    def turn(self) -> Tensor:
        """Trains over the course once, and returns the losses ``[batches]``."""
        assert self._loader is not None
        self._loader.set_epoch(0)
        with closing(iter(self._loader)) as batches:
            losses = [self.runner.step(batch) for batch in islice(batches, self._batches)]
        losses_of_turn = torch.stack(losses)
        if losses_of_turn.is_cuda:
            torch.cuda.synchronize(losses_of_turn.device)
        return losses_of_turn

    @contextmanager
    def one_step(self) -> Iterator[Callable[[], Tensor]]:
        """Yields a function that runs a training step on the first batch of the course."""
        assert self._loader is not None
        self._loader.set_epoch(0)
        with closing(iter(self._loader)) as batches:
            batch = next(batches)
            yield lambda: self.runner.step(batch)

    def filling(self) -> Filling:
        """The filling of the training batches so far."""
        buckets = [b for b in self.runner.report().buckets if b.batches]

        def filled(rows: str, efficiency: str) -> float:
            """Real rows over physical rows of all batches, 0 to 1."""
            physical = [getattr(b, rows) * b.batches for b in buckets]
            real = [
                n * (getattr(b, efficiency) or 0.0) for n, b in zip(physical, buckets, strict=True)
            ]
            return sum(real) / max(1, sum(physical))

        return Filling(
            filled("nodes", "node_efficiency"),
            filled("edges", "edge_efficiency"),
            filled("graphs", "graph_efficiency"),
        )

    def close(self) -> None:
        """Frees the recordings."""
        self.runner.close()


Side = PlainSide | StaticSide


class StepMemory(NamedTuple):
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

    Args:
        side: a prepared side, with a course.
        device: the device of the side.
        before: the value of :func:`reserved_on` before the side was made.
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
