"""What happened to the batches of an epoch, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What happened to the batches of one epoch, over all ranks.

    Attributes:
        graphs: graphs in the epoch.
        batches: batches with at least one graph.
        skipped: graphs left out because they fit no bucket (``oversize="skip"``).
        overflowed: exact batches that were over the main bucket as they were drawn.
        rebalanced: of those, how many came within it by swapping graphs.
        spilled: how many went to another bucket than the main one because it was too small, or
            because graphs of some rank were larger than it promises.
        split: how many were split because no bucket held them.
        empty: all-padding batches added so that all ranks take as many steps.
    """

    graphs: int = 0
    batches: int = 0
    skipped: int = 0
    overflowed: int = 0
    rebalanced: int = 0
    spilled: int = 0
    split: int = 0
    empty: int = 0
