"""What a runner makes torch hold, under its budget: checked first, counted, then measured.

The problem: a recording that runs out of memory, or takes more than predicted, shows it too late to
choose another batch size. The idea: the whole plan is checked when the runner is made, and each
part is entered in a ledger when it is first used. On a device with an allocator that can be
queried, the measured bytes of a recording are noted next to the predicted ones. Only the step
itself is measured, once it is warm, so that neither compilation and autotuning nor what a first run
allocates permanently (optimizer state, workspaces) counts as part of it. The invariant:
``bytes_committed`` grows, then stays constant, and never exceeds the cap. An overrun that shows
only after recording frees all recordings together, since they share a pool, and leaves the process
usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from staticgraph.errors import BudgetExceeded
from staticgraph.memory.budget import GRADIENTS, STEP, Breakdown, MemoryBudget
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.allocator import Allocator, CudaAllocator
from staticgraph.probing.out_of_memory import is_out_of_memory
from staticgraph.probing.probe import probe
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many

# Recordings with gradients of their own, beside those of the training steps, and how to do without.
FROM_IDS = "gradients of steps from ids"
OF_PAIRS = "gradients of forwards with a backward"
INSTEAD = {
    FROM_IDS: "make each batch in a recording of its own, Recording(one_launch=False)",
    OF_PAIRS: "leave 'forward' out of warmup(phases=...)",
}
WHAT_NOW = "All recordings were torn down, eager steps still run:"


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """The memory that a runner holds, as predicted.

    Attributes:
        bytes_committed: bytes of the model, optimizer state, slots, workspaces, and one step as
            large as the largest bucket that has run; 0 without a budget.
        max_bytes: the cap in bytes; None without a budget.
        entries: (name, bytes) of each part.
    """

    bytes_committed: int = 0
    max_bytes: int | None = None
    entries: tuple[tuple[str, int], ...] = ()


class Commitments:
    """The memory ledger of one runner.

    Args:
        plan: the buckets.
        budget: the cap.
        memory: predicts the bytes of a step.
        allocator: queried after each recording; with None nothing is measured.
        recorded: how many recordings of a training step there are, each with its own gradients.

    Raises:
        BudgetExceeded: the plan needs more than the cap.
    """

    def __init__(
        self,
        plan: BucketPlan,
        budget: MemoryBudget,
        memory: MemoryModel,
        allocator: Allocator | None = None,
        recorded: int = 1,
    ) -> None:
        self.breakdown: Breakdown = budget.check(memory, plan.capacities, recorded=recorded)
        self.allocator = allocator
        self.predicted: list[int] = [memory.step_bytes(capacity) for capacity in plan.capacities]
        self.measured: list[int | None] = [None] * len(plan.capacities)
        self._plan = plan
        self._cap = budget.max_bytes
        self._gradients = self.breakdown.lines[GRADIENTS]
        self._overhead = 1 + memory.overhead
        self._before = 0
        lines = self.breakdown.lines
        self._committed = {name: nbytes for name, nbytes in lines.items() if name != STEP}

    @classmethod
    def of(
        cls, subject: Subject, plan: BucketPlan, budget: MemoryBudget, records: bool = False
    ) -> Commitments:
        """Makes the ledger of a runner; probes the model if the budget has no memory model.

        Args:
            subject, plan, budget: those of the runner.
            records: whether training steps may be recorded, one per bucket.
        """
        memory = budget.memory
        if memory is None:
            trained = subject if subject.optimizer is not None else replace(subject, loss=None)
            memory = probe(trained, PlanSource(plan))
        recorded = len(plan.capacities) if records and subject.trains else 1
        return cls(plan, budget, memory, allocator_of(subject.device), recorded=recorded)

    def of_bucket(self, bucket: int) -> dict[str, int | None]:
        """Returns the predicted and the measured bytes of a bucket's step, for the report."""
        return {
            "predicted_bytes": self.predicted[bucket],
            "measured_bytes": self.measured[bucket],
        }

    @property
    def stats(self) -> RunnerStats:
        """What is committed so far."""
        committed = self._committed
        return RunnerStats(sum(committed.values()), self._cap, tuple(committed.items()))

    def use(self, bucket: int) -> None:
        """Commits the step of a bucket; the pool is as large as the largest step needs."""
        step = int(self.predicted[bucket] * self._overhead)
        self._committed[STEP] = max(self._committed.get(STEP, 0), step - self._gradients)

    def more_gradients(self, name: str) -> None:
        """Commits the gradients of further recordings of every bucket; each holds its own set.

        Args:
            name: :data:`FROM_IDS` or :data:`OF_PAIRS`.

        Raises:
            BudgetExceeded: this exceeds the cap; nothing was recorded yet.
        """
        buckets = len(self._plan.capacities)
        nbytes = buckets * self._gradients
        others = sum(self._committed.get(n, 0) for n in INSTEAD if n != name)
        needed = self.breakdown.total_bytes + others + nbytes
        if needed > self._cap:
            raise BudgetExceeded(
                f"{name}, a set for each of {how_many(buckets, 'bucket')}, want "
                f"{human_bytes(nbytes)} in addition to the plan; that makes "
                f"{human_bytes(needed)}, the cap "
                f"is {human_bytes(self._cap)}: raise the cap to {needed:,} bytes, "
                f"or {INSTEAD[name]}",
                self.breakdown,
                needed,
            )
        self._committed[name] = max(self._committed.get(name, 0), nbytes)

    def warmed(self) -> None:
        """Starts measuring: everything a :meth:`recording` block did before this was warm-up."""
        if self.allocator is not None:
            self._before = self.allocator.allocated()
            self.allocator.reset_peak()

    @contextmanager
    def recording(self, bucket: int, tear_down: Callable[[], Any]) -> Iterator[None]:
        """Commits a bucket's step and measures what the block allocates after :meth:`warmed`.

        Raises:
            BudgetExceeded: memory ran out, or the measured bytes exceed the cap; ``tear_down`` was
                called first.
        """
        self.use(bucket)
        self.warmed()
        try:
            yield
        except Exception as error:
            cause = error if is_out_of_memory(error) else error.__cause__ or error.__context__
            if cause is None or not is_out_of_memory(cause):
                raise
            self._end(tear_down)
            raise BudgetExceeded(
                f"bucket {bucket} {self._plan.capacities[bucket]} ran out of memory, "
                f"{human_bytes(self.predicted[bucket])} were predicted: {cause}\n{WHAT_NOW} lower "
                "the budget to what the device really has, and plan again",
                self.breakdown,
                self.breakdown.total_bytes,
            ) from error
        if self.allocator is None:
            return
        nbytes = self.allocator.peak() - self._before
        self.measured[bucket] = max(nbytes, self.measured[bucket] or 0)
        others = sum(n for name, n in self._committed.items() if name not in (STEP, GRADIENTS))
        if FROM_IDS in self._committed:
            others -= self._gradients  # this bucket's gradients are counted in ``taken``
        if others + nbytes > self._cap:
            self._end(tear_down)
            raise BudgetExceeded(
                f"bucket {bucket} {self._plan.capacities[bucket]} took {human_bytes(nbytes)} "
                f"measured, {human_bytes(self.predicted[bucket])} predicted; with "
                f"{human_bytes(others)} for all else that passes the cap of "
                f"{human_bytes(self._cap)}. {WHAT_NOW} raise the cap to {others + nbytes:,} bytes, "
                "or probe on the device (reader='cuda') and plan again",
                self.breakdown,
                others + nbytes,
            )

    def _end(self, tear_down: Callable[[], Any]) -> None:
        tear_down()
        self._committed.clear()
        if self.allocator is not None:
            self.allocator.trim()


class PlanSource:
    """A plan as a data source for a probe: graphs of the sizes that its largest bucket holds.

    Raises:
        ValueError: the plan does not know the fields of the data.
    """

    def __init__(self, plan: BucketPlan) -> None:
        if plan.schema is None:
            raise ValueError(
                "budget= needs the memory of a step, and the plan does not say what fields a graph "
                "has: pass budget.with_memory(probe(model, store, ...)), or a plan of "
                "plan_buckets(store, ...)"
            )
        self.schema: Schema = plan.schema
        last = plan.capacities[-1]
        mean = [last.node_limit // last.graph_limit, last.edge_limit // last.graph_limit]
        extra = [-(-rows // last.graph_limit) for rows in last.extra_limits]
        self.sizes: IntArray = np.array(
            [[max(1, mean[0]), mean[1], *extra]] * 31 + [[last.max_graph_nodes, mean[1], *extra]],
            dtype=np.int64,
        )


def allocator_of(device: torch.device) -> Allocator | None:
    """The allocator that measures recordings; None on a CPU, where nothing is recorded."""
    if device.type != "cuda":
        return None
    return CudaAllocator(device)
