"""The errors of this library that a program may want to catch by type.

Each says what was asked, what was found, which item it was, and what to do about it.
"""

from __future__ import annotations

from typing import Any


class GraphTooLarge(ValueError):
    """A graph fits no bucket of the plan."""


class PlanMismatch(ValueError):
    """A plan was made for other data than it is used with."""


class BadGraph(ValueError):
    """A graph of the data set cannot be stored; the message names it and the remedy."""


class StoreCorrupt(ValueError):
    """The folder of a store is incomplete, of another version, or not what was written."""


class ExportRefused(ValueError):
    """An exported model is not what was exported, or was compiled for something else; nothing of it
    ran."""


class CheckpointCorrupt(ValueError):
    """A checkpoint cannot be read, or was written by another version."""


class UnknownDataset(ValueError):
    """A data set specification names nothing that this library can read."""


class DatasetUnavailable(RuntimeError):
    """A data set is neither here nor to be downloaded."""


class MissingPackage(RuntimeError):
    """A package that an extra brings is not installed; the message says how to install it."""


class SlotsExhausted(RuntimeError):
    """Every slot of a loader is held by a batch that is still alive."""


class StaleBatch(RuntimeError):
    """A batch is used after its slot was given back; its arrays carry, or will carry, another."""


class StaleOutput(RuntimeError):
    """An output lent for one step is used after a recording that shares its memory was replayed."""


class NotStatic(RuntimeError):
    """A step cannot run in fixed shapes; the message names the operation or the guard."""


class NonFiniteLoss(ArithmeticError):
    """A training step's loss is NaN or infinite.

    Attributes:
        graphs: positions in the store of the batch's graphs.
    """

    def __init__(self, message: str, graphs: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.graphs = graphs


class PaddingLeaks(RuntimeError):
    """What stands in padding rows changes the results of real ones; the message names the layer.

    Attributes:
        module: the path of the layer in the model; empty for the model's own forward, None where
            it could not be told.
        where: ``file:line`` of the model's line that led there; empty where it is not known.
    """

    def __init__(self, message: str, module: str | None = None, where: str = "") -> None:
        super().__init__(message)
        self.module = module
        self.where = where


class BudgetExceeded(RuntimeError):
    """A plan needs more memory than its cap allows.

    Attributes:
        breakdown: what it needs, a :class:`staticgraph.memory.budget.Breakdown`; None where only
            a sum is known.
        floor_bytes: the smallest cap that works for this plan.
    """

    def __init__(self, message: str, breakdown: Any = None, floor_bytes: int = 0) -> None:
        super().__init__(message)
        self.breakdown = breakdown
        self.floor_bytes = floor_bytes


class Diverged(RuntimeError):
    """A training's loss, or what it trained, is not finite; what was good before is kept.

    Attributes:
        epoch: the epoch, counted from 1.
    """

    def __init__(self, message: str, epoch: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch


class RankLost(RuntimeError):
    """Another process of a job on several is gone, or ended with an error of its own."""


class FolderInUse(RuntimeError):
    """Another process writes into the folder of a run; the message names it."""


class ProbeFailed(RuntimeError):
    """A model's memory could not be measured: not even the smallest capacities fit."""


class FitRefused(ValueError):
    """Measured points do not determine a model of memory, or none explains them."""


class DryRunUnavailable(RuntimeError):
    """A dry run cannot work on this machine; the message says what is missing."""


class DryRunBroken(RuntimeError):
    """Torch changed where a dry run patches it; the message names the symbol."""


class ServerBusy(RuntimeError):
    """A server's queue is full.

    Attributes:
        retry_after_s: in so many seconds there should be room, at the present pace.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServerClosed(RuntimeError):
    """A server takes no requests any more, or was closed before it came to this one."""


class BatchFailed(RuntimeError):
    """The model failed on the batch that a request's graphs ran in; ``__cause__`` says why."""
