"""Ways to run one training step of one model, similar enough to be compared.

Every contender starts from the same weights and steps over the same batches of HIV molecules in the
same order, with the same fused Adam; only the way a step runs differs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch

import staticgraph as sg
from bench.rehearsal import recorder
from staticgraph.dryrun.operations import kernels_on_cuda
from staticgraph.models import build
from staticgraph.runner.report import Report
from staticgraph.runner.verification import Verification, verify

HIV = "examples/data/hiv.npz"
# Batches kept on the device and used in turn, so that the caches do not hold a single one.
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A model by name, number of layers and width: ``gine:5x300``."""

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
    """A step to be timed: ``step(i)`` trains on batch ``i`` and returns the loss.

    That of a runner also has ``verify(tolerance)``, which compares it with eager, and ``report()``.
    """

    name: str
    step: Callable[[int], torch.Tensor]
    verify: Callable[[float], Verification] | None = None
    warmup_s: float = 0.0
    peak_bytes: int = 0
    held_bytes: int = 0
    report: Callable[[], Report] | None = None
    compiles: int = 0
    efficiency: float | None = None
    chosen: str | None = None

    def proof(self) -> dict[str, Any]:
        """Returns recordings, replays so far, and fallbacks; nothing for what has no runner."""
        report = None if self.report is None else self.report()
        return {
            "recordings": report and sum(bucket.recordings for bucket in report.buckets),
            "replays": report and sum(report.replays.values()),
            "fallbacks": report and list(report.fallbacks),
        }

    def refusal(self, steps: int, before: dict[str, Any]) -> str | None:
        """Returns why the time of so many steps is not that of replays; None if it is.

        Args:
            steps: how many were timed.
            before: the proof before they were.
        """
        if not self.name.startswith("cuda-graph"):
            return None
        replays = self.proof()["replays"] - before["replays"]
        return None if replays == steps else f"{steps} steps were timed, but {replays} replays ran"


def bce(out: torch.Tensor, batch) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(out.float(), batch.y, reduction="none")


class Workload:
    """One model at one batch size on one device."""

    def __init__(self, shape: Shape, batch_size: int, device: str, precision: str) -> None:
        self.store = sg.datasets.open(HIV)
        ids = self.store.splits["train"]
        self.plan = sg.plan_buckets(self.store, batch_size=batch_size)
        # Enough slots for all batches at once: a step then reads a batch of the loader, whose
        # arrays are one buffer and transferred in one copy; those of a clone are copied one by one.
        self.loaders = {
            pointers: sg.StaticLoader(
                self.store,
                self.plan,
                indices=ids,
                shuffle=True,
                device=device,
                pointers=pointers,
                slots=BATCHES + 2,
            )
            for pointers in (False, True)
        }
        self.ids = [b.ids.tolist() for b in self.loaders[False].batcher.epoch(0)[:BATCHES]]
        self._held: dict[bool, list[sg.StaticBatch]] = {}
        self.device = device
        self.precision = precision
        torch.manual_seed(0)
        self.model = build(shape.name, self.store, hidden=shape.hidden, layers=shape.layers)
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"

    def contender(self, name: str, phases: tuple[str, ...] = ("step",)) -> Contender:
        """Prepares a contender by name, and warms it up.

        The names are ``pyg``, ``pyg-dynamic`` (``torch.compile(dynamic=True)``),
        ``pyg-reduce-overhead`` (over variable shapes), ``pad-to-max`` and ``pad-to-powers`` of two
        (:func:`padded`, reduce-overhead), or a mode of the runner, with ``+kernels`` for a
        model converted with kernels. ``phases`` are those that a runner is warmed up for.
        """
        on_cuda = self.device == "cuda"
        if on_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        started, graphs = time.perf_counter(), compiled_graphs()
        if name.startswith("pad-to"):
            made = self._padded(name)
        elif name.startswith("pyg"):
            made = self._pyg(name)
        else:
            made = self._static(name, phases)
        for i in range(2 * len(self.ids)):
            made.step(i)
        if on_cuda:
            torch.cuda.synchronize()
            made.peak_bytes = torch.cuda.max_memory_allocated() - allocated
            torch.cuda.empty_cache()
            made.held_bytes = torch.cuda.memory_reserved() - reserved
        made.warmup_s = time.perf_counter() - started
        made.compiles = compiled_graphs() - graphs
        return made

    def _twin(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = copy.deepcopy(self.model).to(self.device)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)

    def _static(self, name: str, phases: tuple[str, ...]) -> Contender:
        mode, kernels = name.removesuffix("+kernels"), name.endswith("+kernels")
        model, optimizer = self._twin()
        sg.convert(model, kernels=kernels)
        runner = sg.StaticGraphRunner(
            model,
            self.plan,
            mode=mode,
            loss=bce,
            optimizer=optimizer,
            autocast=torch.bfloat16 if self.precision == "bf16" else None,
            recording=sg.Recording(allow_cpu=True, recorder=recorder(mode)),
        )
        runner.warmup(self.store, phases=phases, progress=False)
        batches = self._batches(kernels)
        report = runner.report()
        real = sum(batch.real.nodes for batch in batches)
        return Contender(
            name,
            lambda i: runner.step(batches[i % len(batches)]),
            verify=lambda tolerance: verify(runner, batches[0], tolerance),
            report=runner.report,
            efficiency=real / sum(batch.num_nodes for batch in batches),
            chosen=", ".join(choice.way for choice in report.choices) or None,
        )

    def _batches(self, pointers: bool) -> list[sg.StaticBatch]:
        """Returns the first batches of an epoch, which several contenders share."""
        if pointers not in self._held:
            loader = self.loaders[pointers]
            loader.set_epoch(0)
            self._held[pointers] = list(islice(loader, len(self.ids)))
        return self._held[pointers]

    def _pyg(self, name: str) -> Contender:
        model, optimizer = self._twin()
        batches = [
            Batch.from_data_list([self.store[i] for i in ids]).to(self.device) for ids in self.ids
        ]
        call = model
        if name == "pyg-dynamic":
            call = torch.compile(model, dynamic=True)
        elif name == "pyg-reduce-overhead":
            call = torch.compile(model, mode="reduce-overhead")
        marks = name == "pyg-reduce-overhead"

        def step(i: int) -> torch.Tensor:
            batch = batches[i % len(batches)]
            if marks:
                torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad(set_to_none=True)
            with self._autocast():
                args = (batch.x, batch.edge_index, batch.edge_attr, batch.batch)
                out = call(*args, batch.num_graphs)
            loss = bce(out, batch).mean()
            loss.backward()
            optimizer.step()
            return loss.detach().clone() if marks else loss.detach()

        return Contender(name, step, efficiency=1.0)

    def _padded(self, name: str) -> Contender:
        model, optimizer = self._twin()
        graphs = len(self.ids[0])
        pyg = [Batch.from_data_list([self.store[i] for i in ids]) for ids in self.ids]
        if name == "pad-to-max":
            largest = np.array([(batch.num_nodes, batch.num_edges) for batch in pyg]).max(0)
            largest = np.maximum(largest, largest_batch(self.store, graphs)).tolist()
            sizes = [largest] * len(pyg)
        else:  # one node of padding is always there
            sizes = [
                (2 ** batch.num_nodes.bit_length() - 1, 2 ** (batch.num_edges - 1).bit_length())
                for batch in pyg
            ]
        batches = [
            {key: value.to(self.device) for key, value in padded(batch, nodes, edges).items()}
            for batch, (nodes, edges) in zip(pyg, sizes, strict=True)
        ]
        call = torch.compile(model, mode="reduce-overhead", dynamic=False)

        def step(i: int) -> torch.Tensor:
            batch = batches[i % len(batches)]
            torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad(set_to_none=True)
            with self._autocast():
                args = (batch["x"], batch["edge_index"], batch["edge_attr"], batch["batch"])
                out = call(*args, graphs + 1)
            loss = F.binary_cross_entropy_with_logits(out[:graphs].float(), batch["y"])
            loss.backward()
            optimizer.step()
            return loss.detach().clone()

        real = sum(batch.num_nodes for batch in pyg)
        return Contender(name, step, efficiency=real / sum(nodes + 1 for nodes, _ in sizes))

    def _autocast(self):
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)


def milliseconds(step: Callable[[int], object], first: int, count: int, device: str) -> float:
    """Returns the time per step of ``count`` in a row, from an idle device to the last's end."""
    if device != "cuda":
        started = time.perf_counter()
        for turn in range(first, first + count):
            step(turn)
        return 1e3 * (time.perf_counter() - started) / count
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for turn in range(first, first + count):
        step(turn)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


class Kernels(NamedTuple):
    """The kernels that one step ran on the device, and the launches that the host made."""

    ran: int
    launched: int
    graphs: int


def kernels_per_step(step: Callable[[], object]) -> Kernels | None:
    """Counts kernels and launches in a profile of one step; None on a CPU.

    A recorded step runs as many kernels as were recorded and launches one graph.
    """
    if not torch.cuda.is_available():
        return None
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        step()
        torch.cuda.synchronize()
    names = {event.key: event.count for event in profiled.key_averages()}
    launched = sum(count for key, count in names.items() if "LaunchKernel" in key)
    return Kernels(kernels_on_cuda(step), launched, names.get("cudaGraphLaunch", 0))


def compiled_graphs() -> int:
    """Returns the number of graphs that torch.compile captured in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def largest_batch(store: sg.GraphStore, batch_size: int, seed: int = 0) -> tuple[int, int]:
    """Returns the most nodes and the most edges of any batch of an epoch in random order."""
    ids = np.random.default_rng(seed).permutation(store.splits["train"])
    whole = store.sizes[ids[: len(ids) // batch_size * batch_size], :2]
    sums = whole.reshape(-1, batch_size, 2).sum(1)
    return int(sums[:, 0].max()), int(sums[:, 1].max())


def padded(batch: Batch, nodes: int, edges: int) -> dict[str, Tensor]:
    """Returns a batch's tensors padded to ``nodes + 1`` nodes, ``edges`` edges, one more graph."""
    more_nodes = nodes + 1 - batch.num_nodes
    more_edges = edges - batch.num_edges

    def rows(value: Tensor, count: int, fill: int = 0) -> Tensor:
        return torch.cat([value, value.new_full((count, *value.shape[1:]), fill)])

    return {
        "x": rows(batch.x, more_nodes),
        "edge_index": rows(batch.edge_index.t(), more_edges, nodes).t().contiguous(),
        "edge_attr": rows(batch.edge_attr, more_edges),
        "batch": rows(batch.batch, more_nodes, batch.num_graphs),
        "y": batch.y,
    }
