"""Statistics about the batches of an epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What happened to the batches of one epoch, over all ranks.

    Attributes:
        graphs: graphs in the epoch.
        batches: batches with at least one graph.
        skipped: graphs left out because they fit no bucket (``oversize="skip"``).
        overflowed: exact batches that exceeded the main bucket as they were drawn.
        rebalanced: of those, how many were made to fit by exchanging graphs.
        spilled: how many went to another bucket than the main one because it was too small, or
            because their k-th largest graph was larger than it promises.
        split: how many were split because no bucket held them.
        empty: all-padding batches added so that all ranks take the same number of steps.
    """

    graphs: int = 0
    batches: int = 0
    skipped: int = 0
    overflowed: int = 0
    rebalanced: int = 0
    spilled: int = 0
    split: int = 0
    empty: int = 0
