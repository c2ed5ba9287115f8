"""The exceptions of this library that a program may want to catch by type.

Eight are on the front door (``staticgraph.BadGraph``): :class:`StaticGraphError`, the base of all,
and the seven that say what went wrong. Most of the others are special cases of these, to be caught
apart from here (``staticgraph.errors.GraphTooLarge``). Each message says what was expected, what
was found, in which item, and what to do about it.
"""

from __future__ import annotations

import sys
from typing import Any

_NOT_THE_USERS = ("staticgraph", "torch", "contextlib")


class StaticGraphError(Exception):
    """The base of all exceptions of this library; each is also a built-in one."""


class BadGraph(StaticGraphError, ValueError):
    """A graph of the data set cannot be stored; the message names the graph and the remedy."""


class PlanMismatch(StaticGraphError, ValueError):
    """A plan is used with data other than the data it was made for."""


class GraphTooLarge(PlanMismatch):
    """A graph fits no bucket of the plan."""


class NotStatic(StaticGraphError, RuntimeError):
    """A step cannot run with fixed shapes; the message names the operation or the guard."""


class ResultsDiffer(StaticGraphError, RuntimeError):
    """A model's results on a batch of fixed shape are not those of plain PyG."""


class PaddingLeaks(ResultsDiffer):
    """The values in padding rows change the results of real rows; the message names the layer.

    Attributes:
        module: the path of the layer in the model; empty for the model's own forward, None if it
            could not be determined.
        where: ``file:line`` in the model's code that led there; empty if unknown.
    """

    def __init__(self, message: str, module: str | None = None, where: str = "") -> None:
        super().__init__(message)
        self.module = module
        self.where = where


class EdgesMoved(ResultsDiffer):
    """A model reads edges by their position, and the store has sorted them by destination.

    Attributes:
        what: what differs from plain PyG, in words.
        where: ``file:line`` in the model's code that reads them; empty if unknown.
    """

    def __init__(self, message: str, what: str = "", where: str = "") -> None:
        super().__init__(message)
        self.what = what
        self.where = where


class NonFiniteLoss(StaticGraphError, ArithmeticError):
    """A training step's loss is NaN or infinite.

    Attributes:
        graphs: the positions in the store of the batch's graphs.
    """

    def __init__(self, message: str, graphs: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.graphs = graphs


class Diverged(NonFiniteLoss, RuntimeError):
    """The loss or the parameters of a training run are not finite; the last good state is kept.

    Attributes:
        epoch: the epoch, counted from 1.
    """

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch


class BudgetExceeded(StaticGraphError, RuntimeError):
    """A plan needs more memory than its cap allows.

    Attributes:
        breakdown: the memory it needs, a :class:`staticgraph.memory.budget.Breakdown`; None if
            only the total is known.
        floor_bytes: the smallest cap that works for this plan.
    """

    def __init__(self, message: str, breakdown: Any = None, floor_bytes: int = 0) -> None:
        super().__init__(message)
        self.breakdown = breakdown
        self.floor_bytes = floor_bytes


class ProbeFailed(BudgetExceeded):
    """A model's memory could not be measured: not even the smallest capacities fit."""


class DamagedFile(StaticGraphError, ValueError):
    """A store, a checkpoint or an exported model is not what this version of the library wrote."""


class StoreCorrupt(DamagedFile):
    """The folder of a store is incomplete, of another version, or differs from what was written."""


class CheckpointCorrupt(DamagedFile):
    """A checkpoint cannot be read, or was written by another version."""


class ExportRefused(DamagedFile):
    """An exported model was modified, or was compiled for another environment; none of its code
    ran."""


class UnknownDataset(StaticGraphError, ValueError):
    """A data set specification does not name anything that this library can read."""


class DatasetUnavailable(StaticGraphError, RuntimeError):
    """A data set is not on this machine and cannot be downloaded."""


class MissingPackage(StaticGraphError, RuntimeError):
    """A package of an optional extra is not installed; the message says how to install it."""


class SlotsExhausted(StaticGraphError, RuntimeError):
    """Every slot of a loader is held by a batch that is still alive."""


class StaleBatch(StaticGraphError, RuntimeError):
    """A batch is used after its slot was released; its arrays hold, or will hold, another batch."""


class StaleOutput(StaticGraphError, RuntimeError):
    """An output that is valid for one step is used after a recording that shares its memory was
    replayed."""


class RankLost(StaticGraphError, RuntimeError):
    """Another process of a distributed job is gone, or ended with an error of its own."""


class FolderInUse(StaticGraphError, RuntimeError):
    """Another process is writing to the folder of a run; the message names the process."""


class FitRefused(StaticGraphError, ValueError):
    """Measured points do not determine a memory model, or no memory model explains them."""


class DryRunUnavailable(StaticGraphError, RuntimeError):
    """A dry run cannot work on this machine; the message says what is missing."""


class DryRunBroken(StaticGraphError, RuntimeError):
    """Torch changed in a place that a dry run patches; the message names the symbol."""


class ServerBusy(StaticGraphError, RuntimeError):
    """A server's queue is full.

    Attributes:
        retry_after_s: seconds until there should be room, at the current throughput.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServerClosed(StaticGraphError, RuntimeError):
    """A server accepts no more requests, or was closed before it answered this one."""


class BatchFailed(StaticGraphError, RuntimeError):
    """The model failed on a request's graphs; ``__cause__`` says why."""


def users_level() -> int:
    """Returns the ``stacklevel`` by which a warning of the caller names the innermost line outside
    this library and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    return level
