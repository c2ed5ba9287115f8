"""Norms over a single real row, where the host does not know that there is only one.

The problem: torch refuses statistics over a single value, and so do steps that know their counts.
Where only the device knows them (a batch without counts, rows that a pool chose), running
statistics are left unchanged, which is right, but unreported. The idea: each norm has a flag on the
device that is set when this happens, inside a recording as well, and read when losses are; the user
is told once, by name.

Invariant: no host read in a step. A norm over rows of known levels costs nothing in the step; one
over chosen rows costs a comparison of its count.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.nn.norm.batch_norm import SINGLE
from staticgraph.schema import COUNTS, LEVELS, Level
from staticgraph.steps.rows.provenance import Provenance


class SingleRows:
    """Watches the norms of one model's training steps.

    Args:
        model: converted.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        # Per level: True once a batch of unknown counts had a single real row, and the norms on it.
        self._levels: dict[Level, tuple[Tensor, set[str]]] = {}
        self._told: set[str] = set()

    def note(self, batch: StaticBatch, known: Provenance) -> None:
        """Flags the levels with norms of which a batch has a single real row; reads nothing."""
        if batch.real is not None:  # then a step with a single row is refused
            return
        counts = batch.tensors()[COUNTS]
        for norm, level in known.norms:
            if level not in self._levels:
                self._levels[level] = counts.new_zeros((), dtype=torch.bool), set()
            self._levels[level][1].add(norm)
        for level in {level for _, level in known.norms}:
            self._levels[level][0].logical_or_(counts[_place(batch, level)] == 1)

    def check(self) -> None:
        """Reads the flags, and warns once of each norm that met a single real row."""
        found = list(self._levels.values())
        for path, module in self._model.named_modules():
            if (flag := module._buffers.get(SINGLE)) is not None:
                found.append((flag, {path or "the model"}))
        if not found:
            return
        flags = torch.stack([flag for flag, _ in found]).tolist()
        norms = {name for (_, own), flag in zip(found, flags, strict=True) if flag for name in own}
        if new := sorted(norms - self._told):
            self._told |= norms
            warnings.warn(
                f"{', '.join(new)}: had one real row to take statistics over, in a batch whose "
                "counts only the device knows, where torch would have refused it; the running "
                "statistics were left alone. Leave graphs out that come down to one row, choose a "
                "larger batch, or set the layer to eval()",
                stacklevel=3,
            )

    def clear(self) -> None:
        """Clears all flags."""
        for flag, _ in self._levels.values():
            flag.zero_()
        for module in self._model.modules():
            if (flag := module._buffers.get(SINGLE)) is not None:
                flag.zero_()


def _place(batch: StaticBatch, level: Level) -> int:
    """The position of a level among the counts of a batch."""
    axes = tuple(axis.name for axis in batch.layout.schema.axes)
    return (*LEVELS, *axes).index(level)
