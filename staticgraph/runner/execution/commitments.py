"""What a runner makes torch hold, under its budget: decided first, counted, measured after.

The problem: a recording that runs out of memory, or takes more than was thought, shows it too
late to choose another batch size. The idea: the whole plan is checked when the runner is made; each
part is then entered in a ledger as it comes to be used, and where the device has an allocator to
ask, what a recording took is written beside what was predicted: the step alone, measured once it is
warm, so that neither compiling and autotuning, nor what a first run makes for good (optimizer
state, workspaces), is taken for a part of it. The invariant: ``bytes_committed``
grows, then stays, and never passes the cap. An overrun that shows only after recording tears all
recordings down together, since they share a pool, and leaves the process usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from staticgraph.errors import BudgetExceeded
from staticgraph.memory.budget import DEVICE_SLOTS, Breakdown, Ledger, MemoryBudget
from staticgraph.memory.model import MemoryModel
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.allocator import Allocator, CudaAllocator
from staticgraph.probing.out_of_memory import is_out_of_memory
from staticgraph.probing.probe import probe
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many

STEP, GRADIENTS = "step (largest bucket)", "gradients"
FROM_IDS = "gradients of steps from ids"
OF_PAIRS = "gradients of forwards with a backward"
WHAT_NOW = "All recordings were torn down, eager steps still run:"


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """What a runner holds, by prediction.

    Attributes:
        bytes_committed: of model, optimizer state, slots, workspaces, and one step as large as the
            largest bucket that has run; 0 without a budget.
        max_bytes: the cap; None without a budget.
        entries: the parts.
    """

    bytes_committed: int = 0
    max_bytes: int | None = None
    entries: tuple[tuple[str, int], ...] = ()


class Commitments:
    """The ledger of one runner.

    Args:
        plan: the buckets.
        budget: the cap.
        memory: predicts the bytes of a step.
        allocator: asked after each recording; None measures nothing.
        slots: batches that are alive at once.
        recorded: recordings of a training step, each with gradients of its own.

    Raises:
        BudgetExceeded: the plan needs more than the cap.
    """

    def __init__(
        self,
        plan: BucketPlan,
        budget: MemoryBudget,
        memory: MemoryModel,
        allocator: Allocator | None = None,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> None:
        self.breakdown: Breakdown = budget.check(
            memory, plan.capacities, slots=slots, recorded=recorded
        )
        self.allocator = allocator
        self.predicted: list[int] = [memory.step_bytes(capacity) for capacity in plan.capacities]
        self.measured: list[int | None] = [None] * len(plan.capacities)
        self._plan = plan
        self._ledger = Ledger(budget.max_bytes)
        self._gradients = self.breakdown.gradients
        self._overhead = 1 + memory.overhead
        self._used: set[int] = set()
        self._before = 0
        for name, nbytes in self.breakdown.lines.items():
            if name != STEP:
                self._ledger.commit(name, nbytes)

    @classmethod
    def of(
        cls, subject: Subject, plan: BucketPlan, budget: MemoryBudget, records: bool = False
    ) -> Commitments:
        """For a runner of these; probes the model where the budget has no memory model.

        Args:
            subject, plan, budget: the runner's.
            records: whether its training steps may be recorded, one per bucket.
        """
        memory = budget.memory
        if memory is None:
            trained = subject if subject.optimizer is not None else replace(subject, loss=None)
            memory = probe(trained, PlanSource(plan))
        recorded = len(plan.capacities) if records and subject.trains else 1
        return cls(plan, budget, memory, allocator_of(subject.device), recorded=recorded)

    def of_bucket(self, bucket: int) -> dict[str, int | None]:
        """What a step of a bucket takes, predicted and measured, for the report."""
        return {
            "predicted_bytes": self.predicted[bucket],
            "measured_bytes": self.measured[bucket],
        }

    @property
    def stats(self) -> RunnerStats:
        """What is committed by now."""
        ledger = self._ledger
        return RunnerStats(ledger.bytes_committed, ledger.max_bytes, tuple(ledger.entries.items()))

    def use(self, bucket: int) -> None:
        """Commits the step of a bucket, once; the pool is as large as the largest wants."""
        if bucket not in self._used:
            step = int(self.predicted[bucket] * self._overhead)
            self._ledger.commit(STEP, max(0, step - self._gradients))
            self._used.add(bucket)

    def steps_from_ids(self, buckets: int) -> None:
        """Commits what so many recordings that make their batches themselves hold beside those that
        take any batch: gradients of their own.

        Raises:
            BudgetExceeded: that passes the cap; nothing was recorded yet.
        """
        self._own_gradients(
            FROM_IDS, buckets, "make each batch in a recording of its own, "
            "Recording(one_launch=False)"
        )  # fmt: skip

    def pairs(self, buckets: int) -> None:
        """Commits what so many recorded forwards with their backwards hold beside the training
        steps: gradients of their own.

        Raises:
            BudgetExceeded: that passes the cap; nothing was recorded yet.
        """
        self._own_gradients(OF_PAIRS, buckets, "leave 'forward' out of warmup(phases=...)")

    def _own_gradients(self, name: str, buckets: int, remedy: str) -> None:
        wanted, cap = buckets * self._gradients, self._ledger.max_bytes
        others = sum(self._ledger.entries.get(n, 0) for n in (FROM_IDS, OF_PAIRS) if n != name)
        needed = self.breakdown.total_bytes + others + wanted
        if cap is not None and needed > cap:
            raise BudgetExceeded(
                f"{name}, a set for each of {how_many(buckets, 'bucket')}, want "
                f"{human_bytes(wanted)} in addition to the plan; that makes "
                f"{human_bytes(needed)}, the cap "
                f"is {human_bytes(cap)}: raise the cap to {needed:,} bytes, or {remedy}",
                self.breakdown,
                needed,
            )
        self._ledger.commit(name, wanted)

    def warmed(self) -> None:
        """Measures from now on: what a block of :meth:`recording` did until here was to warm up."""
        if self.allocator is not None:
            self._before = self.allocator.allocated()
            self.allocator.reset_peak()

    @contextmanager
    def recording(self, bucket: int, tear_down: Callable[[], Any]) -> Iterator[None]:
        """Commits a bucket's step and measures what the block takes after :meth:`warmed`.

        Raises:
            BudgetExceeded: memory ran out, or what was measured passes the cap; ``tear_down`` was
                called before.
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
        taken = self.allocator.peak() - self._before
        self.measured[bucket] = max(taken, self.measured[bucket] or 0)
        others = sum(n for name, n in self._ledger.entries.items() if name not in (STEP, GRADIENTS))
        if FROM_IDS in self._ledger.entries:
            others -= self._gradients  # this bucket's are in what was taken
        cap = self._ledger.max_bytes
        if cap is not None and others + taken > cap:
            self._end(tear_down)
            raise BudgetExceeded(
                f"bucket {bucket} {self._plan.capacities[bucket]} took {human_bytes(taken)} "
                f"measured, {human_bytes(self.predicted[bucket])} predicted; with "
                f"{human_bytes(others)} for all else that passes the cap of {human_bytes(cap)}. "
                f"{WHAT_NOW} raise the cap to {others + taken:,} bytes, or probe on the device "
                "(reader='cuda') and plan again",
                self.breakdown,
                others + taken,
            )

    def _end(self, tear_down: Callable[[], Any]) -> None:
        tear_down()
        self._ledger.release()
        self._used.clear()
        if self.allocator is not None:
            self.allocator.trim()


class PlanSource:
    """A plan, as data to probe for: graphs as its largest bucket holds them.

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
        own = [-(-rows // last.graph_limit) for rows in last.extra_limits]
        self.sizes: IntArray = np.array(
            [[max(1, mean[0]), mean[1], *own]] * 31 + [[last.max_graph_nodes, mean[1], *own]],
            dtype=np.int64,
        )


def allocator_of(device: torch.device) -> Allocator | None:
    """Who can say what a recording took; None on a CPU, where nothing is recorded."""
    if device.type != "cuda":
        return None
    return CudaAllocator(device)
