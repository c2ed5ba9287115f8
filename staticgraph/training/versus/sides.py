"""The sides of a comparison: plain PyG, well tuned, and this library in one of its modes.

All sides start from the same weights and train on the same graphs in the same batches and order,
with the same optimizer; only the batching and the execution of the step differ. Plain PyG has its
DataLoader with the fastest number of workers, fused Adam, sizes passed to a model that takes them,
and pinned memory on CUDA. A side that fails is dropped with the reason, and affects no other.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.loader import DataLoader

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.plain_batch import PlainBatch, ReadBatch
from staticgraph.epochs.batcher import Batcher
from staticgraph.nn.convert import convert
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.allocator import Allocator, CudaAllocator, ProfilerAllocator
from staticgraph.probing.fake_tensors import distinct_bytes, state_bytes
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.compilation.modes import MODES
from staticgraph.steps.computation.model_call import Forward, forward_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss, LossTerms
from staticgraph.steps.state.training_state import untouched
from staticgraph.store.graph_store import GraphStore
from staticgraph.training.build_run import adam, source_of
from staticgraph.training.versus.report import SideReport


class VersusSetting:
    """What all sides of a comparison share; see :func:`.comparison.compare`.

    Attributes:
        model: the untrained model, on the CPU; only copies of it are run.
        train_ids: the graphs to train on; those of the split ``train``, or all.
        plan: the plan for their batches.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        store: GraphStore,
        loss: Loss,
        forward: Forward | None = None,
        batch_size: int = 128,
        device: str | torch.device = "cpu",
        lr: float = 1e-3,
        seed: int = 0,
        train_ids: Sequence[int] | np.ndarray = (),
    ) -> None:
        ids = np.asarray(train_ids if len(train_ids) else store.splits.get("train", ()))
        self.train_ids: np.ndarray = ids if len(ids) else np.arange(len(store))
        self.batch_size: int = min(batch_size, len(self.train_ids))
        self.plan: BucketPlan = plan_buckets(store, self.batch_size, indices=self.train_ids)
        self.model: torch.nn.Module = copy.deepcopy(model).cpu()
        self.forward: Forward = forward or forward_of(self.model)
        self.device: torch.device = torch.device(device)
        self.store: GraphStore = store
        self.loss: Loss = loss
        self.lr: float = lr
        self.seed: int = seed

    def fresh_model(self) -> torch.nn.Module:
        """A copy of the model, in training mode on the device."""
        return copy.deepcopy(self.model).to(self.device).train()

    def course(self, batches: int) -> list[list[int]]:
        """The ids of the first ``batches`` batches of the first epoch of a training."""
        batcher = Batcher(
            self.store.sizes, self.plan, indices=self.train_ids, exact=True, shuffle=True,
            seed=self.seed,
        )  # fmt: skip
        return [batch.ids.tolist() for batch in islice(batcher.epoch(0), batches)]


def plain_mean(loss: Loss, out: Any, data: PlainBatch, gaps: Sequence[str]) -> Tensor:
    """The mean of a loss over an unpadded batch, 0-dim; entries of the floating-point fields
    ``gaps`` that are missing are left out of it and of its gradient."""
    if not gaps:
        whole: Any = data
        return LossTerms.of(loss(out, whole)).mean()
    rows: Any = ReadBatch(data)
    labels = {name: data[name] for name in gaps}
    for name, label in labels.items():
        data[name] = torch.where(torch.isnan(label), 0, label)
    values, weights, added = LossTerms.of(loss(out, rows))
    labelled = torch.ones_like(values, dtype=torch.bool)
    for name, label in labels.items():
        data[name] = label
        if name in rows.read() and label.numel() == labelled.numel():
            labelled &= ~torch.isnan(label).view(labelled.shape)
    shares = labelled if weights is None else labelled * weights
    return LossTerms(torch.where(labelled, values, 0), shares, added).mean()


def seconds_of(action: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Side:
    """Trains a copy of the model over the batches of a course, in turns.

    Attributes:
        setting: what is compared.
        report: what was measured so far, or why the side was dropped.
        model, optimizer: those of this side alone, from :meth:`prepare` on.
        course: the ids of the batches of a turn.
        kernels: whether the static model has the fused kernels; None for plain PyG.
        batch_s, one_thread_s: seconds per batch, and on one thread; 0 where not measured.
    """

    kernels: bool | None = None
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    course: list[list[int]]
    batch_s: float = 0.0
    one_thread_s: float = 0.0

    def __init__(self, setting: VersusSetting, name: str) -> None:
        self.setting: VersusSetting = setting
        self.name: str = name
        self.report: SideReport = SideReport(name, threads=torch.get_num_threads())

    def prepare(self) -> None:
        """Makes the model and does what is done once, before the first step."""
        self.model = self.setting.fresh_model()
        if self.kernels is not None:
            convert(self.model, kernels=self.kernels)
        self.optimizer = adam(self.model, self.setting.lr, self.setting.device)

    def begin(self, course: list[list[int]]) -> None:
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

    def filling(self) -> dict[str, float]:
        """Real over physical nodes, edges and graphs of the batches so far; PyG has no padding."""
        return {"nodes": 1.0, "edges": 1.0, "graphs": 1.0}

    def close(self) -> None:
        """Frees processes and recordings."""

    def attempt(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function and returns its result; None if it fails, which drops this side, or if
        the side was dropped before."""
        if self.report.refused is None:
            try:
                return action(*arguments)
            except Exception as error:  # whatever a model raises
                text = str(error).strip() or type(error).__name__
                if not isinstance(error, ValueError | RuntimeError | ArithmeticError):
                    text = f"{type(error).__name__}: {text}"
                self.report.refused = text
        return None

    def take_turn(self) -> None:
        """Takes a turn on the threads that suit this side, unless it was dropped."""
        torch.set_num_threads(self.report.threads)
        losses = self.attempt(self.turn)
        if losses is not None and not self.report.losses:
            self.report.losses = tuple(losses.tolist())

    def measure(self, trial: list[list[int]], threads: int, compiles: bool) -> None:
        """Prepares the side, and measures its time per batch and its memory.

        Args:
            trial: the batches to time.
            threads: the number of torch's threads.
            compiles: whether the step is traced, which is for one number of threads.
        """
        device = self.setting.device
        torch.manual_seed(self.setting.seed)
        torch.set_num_threads(threads)
        allocator = CudaAllocator(device) if device.type == "cuda" else ProfilerAllocator()
        allocator.trim()
        reserved = allocator.reserved()
        self.report.prepare_s = seconds_of(self.prepare)
        self.begin(trial)
        with untouched(self.model, self.optimizer):
            self.turn()
            turn_s = {threads: seconds_of(self.turn)}
            if device.type == "cpu" and not compiles and threads > 1:
                torch.set_num_threads(1)
                turn_s[1] = seconds_of(self.turn)
        self.report.threads = min(turn_s, key=turn_s.__getitem__)
        self.batch_s = min(turn_s.values()) / len(trial)
        self.one_thread_s = turn_s.get(1, 0.0) / len(trial)
        self.report.memory = self._memory(allocator, reserved)

    def _memory(self, allocator: Allocator, reserved: int) -> dict[str, int]:
        """Bytes that are held permanently, and those that a step adds at its peak; ``reserved`` are
        those that the allocator had taken before the side was made."""
        with untouched(self.model, self.optimizer), closing(self.batches()) as batches:
            batch = next(batches)
            self.step(batch)
            allocator.trim()
            held: Any = allocator.reserved() - reserved
            if self.setting.device.type == "cpu":
                self.optimizer.zero_grad(set_to_none=True)  # or freeing old gradients counts
                tensors = (*self.model.parameters(), *self.model.buffers())
                held = distinct_bytes(tensors) + state_bytes(self.optimizer)
            base = allocator.allocated()
            allocator.reset_peak()
            self.step(batch)
            added = allocator.peak() - base
        return {"held_bytes": max(0, held), "step_bytes": max(0, added)}


COMPILED = "PyG, compiled"


class PlainSide(Side):
    """Trains by a standard PyG loop, perhaps under ``torch.compile(dynamic=True)``, with a number
    of collating processes."""

    def __init__(self, setting: VersusSetting, name: str = "PyG", workers: int = 0) -> None:
        super().__init__(setting, name)
        self.workers: int = workers
        schema = setting.store.schema
        self._gaps = [f.name for f in schema if f.has_nan and f.dtype.startswith("float")]

    def prepare(self) -> None:
        """Makes the model."""
        super().prepare()
        compiled = self.name == COMPILED
        self._call: Any = torch.compile(self.model, dynamic=True) if compiled else self.model

    def begin(self, course: list[list[int]]) -> None:
        """Sets the course of the following turns."""
        super().begin(course)
        self._graphs: Any = {i: self.setting.store[i] for ids in course for i in ids}
        self.take_workers(self.workers)

    def take_workers(self, workers: int) -> None:
        """Sets the number of collating processes."""
        self.close()
        order: Any = self.course
        self.workers = workers
        self._loader = DataLoader(
            self._graphs, batch_sampler=order, num_workers=workers, persistent_workers=workers > 0,
            pin_memory=self.setting.device.type == "cuda",
        )  # fmt: skip

    def choose_workers(self, numbers: Sequence[int]) -> None:
        """Sets the fastest number of processes; the state of the training is restored."""
        turn_s: dict[int, float] = {}
        for workers in numbers:
            with untouched(self.model, self.optimizer):
                self.take_workers(workers)
                self.turn()
                turn_s[workers] = seconds_of(self.turn)
        self.take_workers(min(turn_s, key=turn_s.__getitem__))

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
        self._loader: Any = None


KERNELS = "+kernels"
# Modes to which kernels add nothing: eager captures no graph, and the others consist of them.
NO_KERNELS = ("eager", "fused", "auto")
ON_CPU = ("eager", "fused")
ON_CUDA = (
    *("eager", "default", "default+kernels", "reduce-overhead"),
    *("cuda-graph", "cuda-graph+kernels"),
)


class StaticSide(Side):
    """Trains in fixed shapes, in a mode of the runner, with the fused kernels where it is named as
    in ``default+kernels``.

    Raises:
        ValueError: there is no such mode.
    """

    runner: StaticGraphRunner | None = None

    def __init__(self, setting: VersusSetting, name: str) -> None:
        super().__init__(setting, name)
        self.kernels: bool | None = name.endswith(KERNELS)
        with_kernels = [mode + KERNELS for mode in MODES if mode not in NO_KERNELS]
        if name not in (*MODES, *with_kernels):
            raise ValueError(
                f"there is no mode {name!r} to try; choose one of {', '.join(MODES)}, and "
                f"{', '.join(with_kernels)}"
            )

    def prepare(self) -> None:
        """Compiles and records the training step of every bucket.

        Raises:
            NotStatic: the model cannot run with fixed shapes in this mode.
            PaddingLeaks: padding reaches real rows.
        """
        super().prepare()
        setting = self.setting
        subject = Subject(self.model, setting.loss, self.optimizer, setting.forward)
        mode = self.name.removesuffix(KERNELS)
        runner = self.runner = StaticGraphRunner(subject, setting.plan, mode, distributed="off")
        source = source_of("auto", setting.store, setting.device, subject.pointers)
        self._loader: StaticLoader = runner.loader(
            source, indices=setting.train_ids, exact=True, shuffle=True, seed=setting.seed
        )
        runner.warmup(source, phases=("step",), progress=False)

    def batches(self) -> Generator[Any]:
        """The batches of the course, on the device."""
        self._loader.set_epoch(0)
        with closing(iter(self._loader)) as batches:
            yield from islice(batches, len(self.course))

    def step(self, batch: Any) -> Tensor:
        """Trains on a batch, and returns its loss, 0-dim."""
        assert self.runner is not None
        return self.runner.step(batch)

    def filling(self) -> dict[str, float]:
        """Real over physical nodes, edges and graphs of the training batches so far."""
        assert self.runner is not None
        buckets = [b for b in self.runner.report().buckets if b.batches]
        shares = {}
        for rows in ("node", "edge", "graph"):
            physical = [max(1, getattr(b, f"{rows}s")) * b.batches for b in buckets]
            real = [getattr(b, f"{rows}_efficiency") for b in buckets]
            shares[f"{rows}s"] = float(np.average(real, weights=physical))
        return shares

    def close(self) -> None:
        """Frees the recordings."""
        if self.runner is not None:
            self.runner.close()
