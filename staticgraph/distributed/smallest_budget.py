"""One memory cap for all ranks: that of the smallest device."""

from __future__ import annotations

from dataclasses import replace

from staticgraph.distributed.ranks import Ranks
from staticgraph.memory.budget import MemoryBudget


def smallest_budget(budget: MemoryBudget, ranks: Ranks | None) -> MemoryBudget:
    """The budget that all ranks use: of the ranks' budgets, the one that leaves least for steps.

    All ranks take the same buckets, so the plan fits the job if it fits the smallest device. A plan
    that does not fit is refused on all ranks, before anything is recorded.

    Args:
        budget: the budget of this rank's device.
        ranks: the processes of the job; if None, the budget is returned unchanged.
    """
    if ranks is None:
        return budget
    told = ranks.told(
        (
            budget.max_bytes - budget.data_set_bytes,
            budget.max_bytes,
            budget.driver_bytes,
            budget.headroom_bytes,
            budget.device,
            budget.data_set_bytes,
        )
    )
    rank = min(range(len(told)), key=lambda number: (told[number][0], number))
    _, most, driver, headroom, device, data_set = told[rank]
    return replace(
        budget,
        max_bytes=most,
        driver_bytes=driver,
        headroom_bytes=headroom,
        device=f"rank {rank}: {device}",
        data_set_bytes=data_set,
    )
