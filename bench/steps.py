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
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch

import staticgraph as sg
from bench.rehearsal import recorder
from staticgraph.models import build
from staticgraph.recording.graph_recorder import CudaGraphRecorder

HIV = "examples/data/hiv.npz"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Batches kept on the device and used in turn, so that the caches do not hold a single one.
BATCHES = 8


class Shape(NamedTuple):
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

    def build(self, store: sg.GraphStore, seed: int = 0) -> torch.nn.Module:
        """Returns the model for the graphs of a store, on the CPU."""
        torch.manual_seed(seed)
        return build(self.name, store, hidden=self.hidden, layers=self.layers)


class Uncompiled(CudaGraphRecorder):
    """Records the eager step, without Inductor."""

    compiles = False


def bce(out: Tensor, batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(out.float(), batch.y, reduction="none")


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of every contender, which can be recorded."""
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)


def static_runner(
    model: torch.nn.Module, plan: Any, mode: str, autocast: torch.dtype | None = None
) -> sg.StaticGraphRunner:
    """Returns a runner in a mode, with ``+kernels`` for a model converted with kernels."""
    mode, kernels = mode.removesuffix("+kernels"), mode.endswith("+kernels")
    sg.convert(model, kernels=kernels)
    recording = sg.Recording(allow_cpu=True, recorder=recorder(mode))
    return sg.StaticGraphRunner(
        model, plan, mode, loss=bce, optimizer=adam(model), autocast=autocast, recording=recording
    )


@dataclass(slots=True)
class Contender:
    """A step to be timed: ``step(i)`` trains on batch ``i`` and returns the loss.

    That of a mode also has its runner, and the batches that it steps over.
    """

    name: str
    step: Callable[[int], Tensor]
    efficiency: float
    runner: sg.StaticGraphRunner | None = None
    batches: list[sg.StaticBatch] | None = None
    warmup_s: float = 0.0
    peak_bytes: int = 0

    def proof(self) -> dict[str, Any]:
        """Returns recordings, replays so far, and fallbacks; nothing for what has no runner."""
        if self.runner is None:
            return {}
        report = self.runner.report()
        return {
            "chosen": ", ".join(choice.way for choice in report.choices),
            "recordings": sum(bucket.recordings for bucket in report.buckets),
            "replays": sum(report.replays.values()),
            "fallbacks": list(report.fallbacks),
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


class Workload:
    """One model at one batch size, on the GPU if there is one."""

    def __init__(self, shape: Shape, batch_size: int, precision: str) -> None:
        self.store = sg.datasets.open(HIV)
        self.plan = sg.plan_buckets(self.store, batch_size=batch_size)
        self.model = shape.build(self.store)
        self.autocast = torch.bfloat16 if precision == "bf16" else None
        self.batches = cache(self._batches)
        self.ids = [b.ids.tolist() for b in self._loader(False).batcher.epoch(0)[:BATCHES]]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def contender(self, name: str, phases: tuple[str, ...] = ("step",)) -> Contender:
        """Prepares a contender by name, and warms it up.

        The names are ``pyg``, ``pyg-dynamic`` (``torch.compile(dynamic=True)``), ``pad-to-powers``
        of two (:func:`padded`, reduce-overhead), or a mode of the runner, with ``+kernels`` for a
        model converted with kernels. ``phases`` are those that a runner is warmed up for.
        """
        on_cuda, allocated = DEVICE.type == "cuda", 0
        if on_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            allocated = torch.cuda.memory_allocated()
        started = time.perf_counter()
        if name == "pad-to-powers":
            contender = self._padded(name)
        elif name.startswith("pyg"):
            contender = self._pyg(name)
        else:
            contender = self._static(name, phases)
        for i in range(2 * len(self.ids)):
            contender.step(i)
        if on_cuda:
            torch.cuda.synchronize()
            contender.peak_bytes = torch.cuda.max_memory_allocated() - allocated
        contender.warmup_s = time.perf_counter() - started
        return contender

    def _static(self, name: str, phases: tuple[str, ...]) -> Contender:
        model = copy.deepcopy(self.model).to(DEVICE)
        runner = static_runner(model, self.plan, name, self.autocast)
        runner.warmup(self.store, phases=phases, progress=False)
        batches = self.batches(name.endswith("+kernels"))
        real = sum(batch.real.nodes for batch in batches)
        efficiency = real / sum(batch.num_nodes for batch in batches)
        step = lambda i: runner.step(batches[i % len(batches)])  # noqa: E731
        return Contender(name, step, efficiency, runner, batches)

    def _loader(self, pointers: bool) -> sg.StaticLoader:
        # Enough slots for all batches at once: a step then reads a batch of the loader, whose
        # arrays are one buffer and transferred in one copy; those of a clone are copied one by one.
        return sg.StaticLoader(
            self.store, self.plan, indices=self.store.splits["train"], shuffle=True,
            device=DEVICE, pointers=pointers, slots=BATCHES + 2,
        )  # fmt: skip

    def _batches(self, pointers: bool) -> list[sg.StaticBatch]:
        """Returns the first batches of an epoch, which several contenders share."""
        return list(islice(self._loader(pointers), len(self.ids)))

    def _pyg(self, name: str) -> Contender:
        batches = [batch.to(DEVICE) for batch in self._pyg_batches()]
        model = copy.deepcopy(self.model).to(DEVICE)
        call = torch.compile(model, dynamic=True) if name == "pyg-dynamic" else model
        optimizer = adam(model)

        def step(i: int) -> Tensor:
            batch = batches[i % len(batches)]
            optimizer.zero_grad(set_to_none=True)
            with self._autocast():
                args = (batch.x, batch.edge_index, batch.edge_attr, batch.batch)
                out = call(*args, batch.num_graphs)
            loss = bce(out, batch).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Contender(name, step, efficiency=1.0)

    def _pyg_batches(self) -> list[Any]:
        return [Batch.from_data_list([self.store[i] for i in ids]) for ids in self.ids]

    def _padded(self, name: str) -> Contender:
        pyg, graphs = self._pyg_batches(), len(self.ids[0])
        # One node of padding is always there.
        sizes = [
            (2 ** batch.num_nodes.bit_length() - 1, 2 ** (batch.num_edges - 1).bit_length())
            for batch in pyg
        ]
        batches = [
            {key: value.to(DEVICE) for key, value in padded(batch, nodes, edges).items()}
            for batch, (nodes, edges) in zip(pyg, sizes, strict=True)
        ]
        model = copy.deepcopy(self.model).to(DEVICE)
        call, optimizer = torch.compile(model, mode="reduce-overhead", dynamic=False), adam(model)

        def step(i: int) -> Tensor:
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
        return torch.autocast(DEVICE.type, self.autocast) if self.autocast else nullcontext()


def milliseconds(step: Callable[[int], object], first: int, count: int) -> float:
    """Returns the time per step of ``count`` in a row, from an idle device to the last's end."""
    if DEVICE.type != "cuda":
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


def compiled_graphs() -> int:
    """Returns the number of graphs that torch.compile captured in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def padded(batch: Any, nodes: int, edges: int) -> dict[str, Tensor]:
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
