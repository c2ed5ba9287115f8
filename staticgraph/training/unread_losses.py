"""Losses that are still on the device: reading them one by one would synchronize at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.training.history import StepRecord

# The number of steps per read.
READ_EVERY = 20


class UnreadLosses:
    """Steps whose loss has not been copied to the host yet."""

    def __init__(self) -> None:
        self._kept: list[tuple[StepRecord, Tensor]] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def full(self) -> bool:
        """Whether the losses should be read now."""
        return len(self) >= READ_EVERY

    def add(self, step: StepRecord, loss: Tensor) -> None:
        """Adds a step and its loss, 0-dim on the device."""
        self._kept.append((step, loss))

    def read(self) -> list[StepRecord]:
        """Copies all losses to the host at once; returns the steps with their losses, and forgets
        them."""
        if not self._kept:
            return []
        losses = torch.stack([loss for _, loss in self._kept]).tolist()
        read = [step._replace(loss=x) for (step, _), x in zip(self._kept, losses, strict=True)]
        self._kept.clear()
        return read
