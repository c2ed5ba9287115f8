"""Losses that are still on the device: reading each one would wait for the device each time."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.training.history import StepRecord

# So many steps wait for one read.
READ_EVERY = 20


class UnreadLosses:
    """Steps whose loss the host does not know yet."""

    def __init__(self) -> None:
        self._kept: list[tuple[StepRecord, Tensor]] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def full(self) -> bool:
        """Whether they are to be read now."""
        return len(self) >= READ_EVERY

    def add(self, step: StepRecord, loss: Tensor) -> None:
        """A step, and its loss, 0-dim on the device."""
        self._kept.append((step, loss))

    def read(self) -> list[StepRecord]:
        """Fetches all from the device in one go: the steps with their losses, which wait no
        longer."""
        if not self._kept:
            return []
        losses = torch.stack([loss for _, loss in self._kept]).tolist()
        read = [step._replace(loss=x) for (step, _), x in zip(self._kept, losses, strict=True)]
        self._kept.clear()
        return read
