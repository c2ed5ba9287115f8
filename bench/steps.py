"""Ways to run one training step of one model, alike enough to be compared.

Every contender starts from the same weights and steps over the same batches of HIV molecules in the
same order, with the same fused Adam; what differs is how a step runs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch_geometric.data import Batch

import staticgraph as sg
from staticgraph.models import build

HIV = "examples/data/hiv.npz"
# Batches kept on the device and stepped over in turn, so that no cache holds one by heart.
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A model by name, layers and width: ``gine:5x300``."""

    name: str
    layers: int
    hidden: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        name, _, size = text.partition(":")
        layers, _, hidden = size.partition("x")
        return cls(name, int(layers), int(hidden))

    def __str__(self) -> str:
        return f"{self.name} {self.layers}x{self.hidden}"


@dataclass(slots=True)
class Contender:
    """A step to be timed: ``step(i)`` trains on batch ``i`` and returns the loss."""

    name: str
    step: Callable[[int], torch.Tensor]
    warmup_s: float
    peak_bytes: int
    recordings: int | None = None
    compiles: int | None = None
    efficiency: float | None = None


def bce(out: torch.Tensor, batch) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(out.float(), batch.y, reduction="none")


class Workload:
    """One model at one batch size on one device."""

    def __init__(self, shape: Shape, batch_size: int, device: str, precision: str) -> None:
        self.store = sg.datasets.open(HIV)
        ids = self.store.splits["train"]
        self.plan = sg.plan_buckets(self.store, batch_size=batch_size)
        self.loader = sg.StaticLoader(
            self.store, self.plan, indices=ids, shuffle=True, device=device
        )
        self.ids = [b.ids.tolist() for b in self.loader.batcher.epoch(0)[:BATCHES]]
        self.device = device
        self.precision = precision
        torch.manual_seed(0)
        self.model = build(shape.name, self.store, hidden=shape.hidden, layers=shape.layers)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def contender(self, name: str) -> Contender:
        """``pyg``, ``pyg-dynamic`` (torch.compile(dynamic=True)), or a mode of the runner."""
        on_cuda = self.device == "cuda"
        if on_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        made = self._pyg(name) if name.startswith("pyg") else self._static(name)
        for i in range(2 * len(self.ids)):
            made.step(i)
        if on_cuda:
            torch.cuda.synchronize()
            made.peak_bytes = torch.cuda.max_memory_reserved()
        made.warmup_s = time.perf_counter() - started
        return made

    def _twin(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = copy.deepcopy(self.model).to(self.device)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)

    def _static(self, mode: str) -> Contender:
        model, optimizer = self._twin()
        runner = sg.StaticGraphRunner(
            model,
            self.plan,
            mode=mode,
            loss=bce,
            optimizer=optimizer,
            autocast=torch.bfloat16 if self.precision == "bf16" else None,
            allow_cpu=True,
        )
        runner.warmup(phases=("step",), progress=False)
        batches = []
        for batch in self.loader:
            copied = batch.clone()
            copied.real = batch.real
            batches.append(copied)
            if len(batches) == len(self.ids):
                break
        self.loader.set_epoch(0)
        report = runner.report()
        real = sum(batch.real.nodes for batch in batches)
        return Contender(
            mode,
            lambda i: runner.step(batches[i % len(batches)]),
            0.0,
            0,
            sum(b.recordings for b in report.buckets),
            sum(b.compiles for b in report.buckets),
            real / sum(batch.num_nodes for batch in batches),
        )

    def _pyg(self, name: str) -> Contender:
        model, optimizer = self._twin()
        batches = [
            Batch.from_data_list([self.store[i] for i in ids]).to(self.device) for ids in self.ids
        ]
        call = torch.compile(model, dynamic=True) if name == "pyg-dynamic" else model

        def step(i: int) -> torch.Tensor:
            batch = batches[i % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            with self._autocast():
                args = (batch.x, batch.edge_index, batch.edge_attr, batch.batch)
                out = call(*args, batch.num_graphs)
            loss = bce(out, batch).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Contender(name, step, 0.0, 0)

    def _autocast(self):
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)


def kernels_per_step(contender: Contender) -> tuple[int, int] | None:
    """Kernel launches and graph launches of one step, from a profile; None on a CPU."""
    if not torch.cuda.is_available():
        return None
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        contender.step(0)
        torch.cuda.synchronize()
    names = {event.key: event.count for event in profiled.key_averages()}
    launches = sum(count for key, count in names.items() if key.startswith("cudaLaunchKernel"))
    launches += names.get("cuLaunchKernel", 0) + names.get("cuLaunchKernelEx", 0)
    return launches, names.get("cudaGraphLaunch", 0)
