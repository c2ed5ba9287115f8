"""What a model's layers ask about rows while its sizes are varied on purpose.

A tensor's leading size says what its rows are only if that size came from the batch. Over a batch
of other sizes the two kinds part: rows of the batch change in number along with it, a table of the
model's own keeps its number. :mod:`staticgraph.steps.rows.provenance` runs a model over such a
batch once; what the layers ask meanwhile is noted here. A step is never noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch import Tensor

from staticgraph.internals.dispatch import traced_here

# On a norm that was seen to run over a tensor of the model's own: no row of it is padding. Its
# class has it too: the guard of a captured step on an attribute that is not there is answered by
# an error, of a microsecond a norm and call.
APART = "_staticgraph_apart"


class NeedsStems(Exception):
    """Whether a tensor stems from the batch must be known, and is not followed in this run."""


class Asked:
    """The questions of one run.

    Args:
        stems: tells whether a tensor was computed from the batch; None where that is not followed.

    Attributes:
        unknown: leading sizes that were asked about and belong to nothing in the batch, each with
            the layer that asked.
        norms: of each norm over rows of the batch, the level, where rows are one value each.
        uncounted: norms over rows of which the host does not know how many are real, as those that
            a pool chose, where rows are one value each.
        apart: norms over tensors of the model's own.
    """

    def __init__(self, stems: Callable[[Tensor], bool] | None = None) -> None:
        self._stems = stems
        self.unknown: dict[int, torch.nn.Module | None] = {}
        self.norms: dict[torch.nn.Module, set[str]] = {}
        self.uncounted: set[torch.nn.Module] = set()
        self.apart: set[torch.nn.Module] = set()

    def size(self, size: int) -> None:
        """Notes a size that belongs to nothing."""
        self.unknown.setdefault(size, _asking())

    def norm(self, norm: torch.nn.Module, value: Tensor, known: bool, level: str | None) -> bool:
        """Notes a norm over a tensor; True where the tensor is the model's own.

        Raises:
            NeedsStems: it is not known yet which tensors are the model's own.
        """
        if known:
            if value[0].numel() == value.shape[1]:
                if level is None:
                    self.uncounted.add(norm)
                else:
                    self.norms.setdefault(norm, set()).add(level)
            return False
        if self._stems is None:
            raise NeedsStems
        if self._stems(value):
            return False
        self.apart.add(norm)
        return True


def _asking() -> torch.nn.Module | None:
    """The innermost layer that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        layer = frame.f_locals.get("self")
        if isinstance(layer, torch.nn.Module):
            return layer
        frame = frame.f_back
    return None


ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)


def asked() -> Asked | None:
    """Where to note; None in a step, and while one is compiled."""
    return None if traced_here() else ASKED.get()
