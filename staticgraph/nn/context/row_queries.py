"""Records what a model's layers ask about row counts in a run whose sizes are varied on purpose.

A tensor's leading size tells what its rows are only if that size came from the batch. A batch of
other sizes separates the two cases: rows of the batch change in number with it, while a table of
the model's own keeps its size. :mod:`staticgraph.steps.computation.provenance` runs a model once on
such a batch; the layers' queries during that run are recorded here. An actual step is never
recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch import Tensor

# Set on a norm that was seen to run over a tensor of the model's own, none of whose rows is
# padding. The class has the attribute too: in a captured step, a guard on a missing attribute goes
# through an exception, which costs a microsecond per norm and call.
APART = "_staticgraph_apart"
# What :attr:`Asked.flat` has of a norm.
FLAT = "_staticgraph_flat"
# In :attr:`Asked.flat` of a norm over ``[k, C, R]`` with rows of the batch in the last dimension.
LAST = ("last", 0)


class NeedsStems(Exception):
    """Raised where a run must know which tensors stem from the batch, but does not track it."""


class Asked:
    """The queries of one run.

    Args:
        stems: tells whether a tensor was computed from the batch; None where that is not tracked.

    Attributes:
        unknown: queried leading sizes that belong to nothing in the batch, each with the layer that
            asked.
        norms: the levels of the rows that each norm ran over, for norms with one value per channel
            in each row.
        uncounted: norms over rows whose real count the host does not know, such as those selected
            by a pool; again with one value per channel in each row.
        apart: norms over tensors of the model's own.
        flat: for norms over rows that were laid flat, the levels that these may be of, each with
            how many there are to one of its rows.
    """

    def __init__(self, stems: Callable[[Tensor], bool] | None = None) -> None:
        self._stems = stems
        self.unknown: dict[int, torch.nn.Module | None] = {}
        self.norms: dict[torch.nn.Module, set[str]] = {}
        self.uncounted: set[torch.nn.Module] = set()
        self.apart: set[torch.nn.Module] = set()
        self.flat: dict[torch.nn.Module, tuple[tuple[str, int], ...]] = {}

    def size(self, size: int) -> None:
        """Records a size that belongs to nothing in the batch."""
        self.unknown.setdefault(size, _asking())

    def norm(self, norm: torch.nn.Module, value: Tensor, known: bool, level: str | None) -> bool:
        """Records a norm over a tensor; returns True if the tensor is the model's own.

        Raises:
            NeedsStems: this run does not track which tensors are the model's own.
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


# The record that batches are bound with.
ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)
