"""The largest batch size that fits a memory budget.

The problem: the batch size that fills a card is not known in advance, and filling it is not the
goal (a card was seen with 93% of its memory but only 16% of its compute units in use). The idea:
search for the largest batch size whose plan is predicted to fit, subject to a minimum number of
steps per epoch, and say which of the two set the limit. The invariant: the returned plan fits, and
one more graph per batch would not fit or would leave too few steps. It also fits when recorded,
where the step of each bucket keeps its own gradients.

Decisions rest on predictions alone. Pure numbers, no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from staticgraph.memory.budget import Breakdown, MemoryBudget, largest
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.plans.plan import BucketPlan
from staticgraph.text.byte_sizes import human_bytes

# Fewer updates per epoch than this rarely train well, however fast they are.
MIN_STEPS = 32
# For the search; the margin for the batch size it finds is then determined by trial.
FIRST_MARGIN = 0.02
Make = Callable[[int, float | None], BucketPlan]


def sized_plan(
    make: Make,
    num_graphs: int,
    memory: MemoryModel,
    budget: MemoryBudget,
    *,
    min_steps_per_epoch: int = MIN_STEPS,
    batch_size: int | None = None,
    margin: float | None = None,
) -> BucketPlan:
    """Makes the plan with the largest batch size that fits; its note says what set the limit.

    Args:
        make: ``make(batch_size, margin)``; a margin of None is found by trial.
        num_graphs: number of training graphs, which bounds the steps of an epoch.
        memory: predicts the bytes of a capacity.
        budget: the cap.
        min_steps_per_epoch: the least number of batches per epoch, at least 1.
        batch_size: if given, it is only checked against the budget.
        margin: if given, it is used instead of one found by trial.

    Raises:
        BudgetExceeded: not even batches of one graph fit, or the given batch size does not.
        ValueError: ``min_steps_per_epoch`` below 1.
    """
    if min_steps_per_epoch < 1:
        raise ValueError(f"min_steps_per_epoch={min_steps_per_epoch} must be at least 1")

    def check(plan: BucketPlan) -> Breakdown:
        """Returns the plan's breakdown; raises if the plan exceeds the cap."""
        return budget.check(memory, plan.capacities, recorded=len(plan.capacities))

    def fits(plan: BucketPlan) -> bool:
        """Whether the plan stays within the cap."""
        return budget.fits(memory, plan.capacities, recorded=len(plan.capacities))

    if batch_size is not None:
        plan = make(batch_size, margin)
        fit = check(plan)
        request = plan.note or f"batch_size={batch_size} as asked"
        return replace(plan, note=_note(request, fit, budget))

    def largest_at(tried: float) -> int:
        """The largest batch size that fits at a margin; raises if not even one graph fits."""
        smallest = make(1, tried)
        check(smallest)
        return largest(lambda b: fits(make(b, tried)), 1, most)

    most = max(1, num_graphs // min_steps_per_epoch)
    if margin is None:
        margin = make(largest_at(FIRST_MARGIN), None).margin
    chosen = largest_at(margin or 0.0)
    plan = make(chosen, margin)
    fit = check(plan)
    limit = (
        f"batch_size={chosen} by min_steps_per_epoch={min_steps_per_epoch}, memory to spare"
        if chosen == most
        else f"batch_size={chosen} by memory, most of it {fit.binding}"
    )
    return replace(plan, note=_note(limit, fit, budget))


def _note(limit: str, fit: Breakdown, budget: MemoryBudget) -> str:
    return (
        f"{limit}; predicted {human_bytes(fit.total_bytes)} of at most "
        f"{human_bytes(budget.max_bytes)} ({budget.device})"
    )
