"""This library's own patch: a blank batch is filled through NumPy, which cannot use fake memory."""

from __future__ import annotations

from typing import Any

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

_real = StaticBatch.blank


def blank(layout: SlotLayout, device: Any = "cpu") -> StaticBatch:
    """Like ``StaticBatch.blank``, with arrays of undefined values on the emulated device."""
    if torch.device(device).type == "cpu":
        return _real(layout, device)
    return StaticBatch(
        layout,
        {
            entry.name: torch.empty(
                entry.shape, dtype=getattr(torch, entry.dtype.name), device=device
            )
            for entry in layout.entries
        },
    )


def install(points: PatchPoints, target: TargetDevice) -> None:
    """Patches ``StaticBatch.blank`` to work without NumPy."""
    points.put(
        "staticgraph.batches.batch.static_batch:StaticBatch.blank",
        staticmethod(blank),
        "fills through NumPy",
    )
