"""Plain PyG, well tuned: its DataLoader with the fastest number of workers, fused Adam, sizes
passed to a model that takes them, pinned memory on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.loader import DataLoader

from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.training.versus.labels import fields_with_gaps, plain_mean
from staticgraph.training.versus.setting import Course, VersusSetting
from staticgraph.training.versus.side import Filling


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
        found = torch.stack(losses)
        if found.is_cuda:
            torch.cuda.synchronize(found.device)
        return found

    def _step(self, data: PlainBatch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        asked: Any = data
        out = self.setting.forward(self._call, asked)
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
