"""This library in one of its modes, run as by ``staticgraph train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.nn.convert import convert
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.compilation.modes import MODES
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore, fits, is_simple
from staticgraph.training.versus.setting import Course, VersusSetting
from staticgraph.training.versus.side import Filling

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
        found = torch.stack(losses)
        if found.is_cuda:
            torch.cuda.synchronize(found.device)
        return found

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
