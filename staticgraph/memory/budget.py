"""A hard cap on all memory that this library makes torch allocate, decided before the first step.

The problem: a recording that runs out of memory midway leaks its pool for the life of the process,
so whether a plan fits must be decided before anything is compiled. The idea: add up what is known
(model, optimizer state, slots, one pool as large as the largest bucket needs, library workspaces),
compare it with the cap, and refuse with the sum, the floor and the remedies in numbers. The
invariants: the lines of a breakdown add up to its total; every accepted plan fits the cap; a larger
cap accepts every plan that a smaller one did.

It does not measure. It is pure arithmetic without torch; only :meth:`MemoryBudget.of_device`
queries a device, through :mod:`staticgraph.memory.device`. The contract (breakdown, floor,
remedies, and another error for a consumer that keeps batches) follows damacy's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from staticgraph.errors import BudgetExceeded
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes, parse_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option
from staticgraph.text.table import table

# Batches alive at once: a loader's default slots on the device; on the host, one in use and the
# next one being copied in.
DEVICE_SLOTS = 4
HOST_SLOTS = 2
# Names of lines of the breakdown.
GRADIENTS, STEP = "gradients", "step (largest bucket)"
MORE_GRADIENTS = "gradients of further recordings"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The bytes that a plan makes torch allocate on the device, by purpose.

    Attributes:
        lines: the bytes of the model and its training state; of ``slots``, all batches on the
            device; of :data:`STEP`, what a step adds except gradients: one pool, as large as the
            largest bucket needs; of cuBLAS and similar libraries; of the graphs themselves, where
            they are kept on the device; and of :data:`MORE_GRADIENTS`, those of all recordings of a
            training step but one: each recording writes its own gradients, and no later recording
            can reuse their memory.
        pinned_host: slots in host memory; not part of the total.
        bucket: the capacity that sets the pool.
        binding: the term that takes most of it.
    """

    lines: dict[str, int]
    pinned_host: int
    bucket: Capacity
    binding: str

    @property
    def total_bytes(self) -> int:
        """The sum of all lines."""
        return sum(self.lines.values())

    def __str__(self) -> str:
        total = max(1, self.total_bytes)
        rows = [
            (name, human_bytes(count), f"{100 * count / total:.1f}%")
            for name, count in (*self.lines.items(), ("total", self.total_bytes))
        ]
        return (
            table(("on the device", "bytes", "share"), rows)
            + f"\nlargest bucket {self.bucket}, most of it {self.binding}; "
            f"{human_bytes(self.pinned_host)} pinned on the host besides"
        )


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A memory cap, as in ``MemoryBudget("20GiB")``, or from :meth:`of_device`.

    Attributes:
        max_bytes: the most that this library may make torch allocate on the device; text such as
            ``"20GiB"`` is parsed by :func:`staticgraph.text.byte_sizes.parse_bytes`.
        driver_bytes: already used by the driver and by others; for people, not part of the cap.
        headroom_bytes: left free on purpose; likewise.
        device: the device that the cap is for.
        data_set_bytes: the part of the cap used by a data set on the device; a line of every
            breakdown.
        memory: predicts the bytes of a step; where it is None, callers that need it probe the
            model.
    """

    max_bytes: int
    driver_bytes: int = 0
    headroom_bytes: int = 0
    device: str = "given by hand"
    data_set_bytes: int = 0
    memory: MemoryModel | None = None

    if TYPE_CHECKING:  # the cap may be given as text; it is stored as a number

        def __init__(
            self,
            max_bytes: int | str,
            driver_bytes: int = 0,
            headroom_bytes: int = 0,
            device: str = "given by hand",
            data_set_bytes: int = 0,
            memory: MemoryModel | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_bytes", parse_bytes(self.max_bytes))
        for name in ("driver_bytes", "headroom_bytes", "data_set_bytes"):
            object.__setattr__(self, name, whole_option(name, getattr(self, name), 0))

    @classmethod
    def of_device(
        cls, device: Any = None, *, safety: float = 0.95, max_bytes: int | str | None = None
    ) -> MemoryBudget:
        """A budget of the share ``safety`` of a device's memory for this process.

        Memory that torch already holds counts as available, since it includes the model, which the
        plan's breakdown counts as well: so the model is counted once. On the CPU the available main
        memory is used.

        Args:
            device: a torch device or its name; where None, the current CUDA device, or the CPU
                without one.
            safety: above 0, at most 1.
            max_bytes: an additional hard cap, in bytes or as text.

        Raises:
            ValueError: ``safety`` is out of range, or the memory of the device cannot be read.
        """
        from staticgraph.memory.device import device_memory

        if not 0 < safety <= 1:
            raise ValueError(f"safety={safety} must be above 0 and at most 1, such as 0.95")
        name, total, ours = device_memory(device)
        most = int(safety * ours)
        if max_bytes is not None:
            most = min(most, parse_bytes(max_bytes))
        return cls(most, total - ours, ours - most, name)

    def with_data_set(self, nbytes: int) -> MemoryBudget:
        """The same cap with ``nbytes`` more of it used by a data set on the device."""
        return replace(self, data_set_bytes=self.data_set_bytes + nbytes)

    def with_memory(self, memory: MemoryModel) -> MemoryBudget:
        """The same cap with a model that predicts the bytes of a step.

        Args:
            memory: as returned by :func:`staticgraph.probe`.
        """
        return replace(self, memory=memory)

    def breakdown(
        self,
        memory: MemoryModel,
        capacities: Sequence[Capacity],
        *,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> Breakdown:
        """Computes what a plan of these capacities makes torch allocate, fitting or not.

        Every slot is as large as the largest bucket needs, and so is the one pool that all
        recordings share: the maximum, not the sum. Only gradients are not shared.

        Args:
            memory: predicts the bytes of a step.
            capacities: of the buckets.
            slots: batches that are alive at once on the device.
            recorded: number of recordings of a training step, each with separate gradients; 1
                where nothing is recorded.
        """
        capacity = max(capacities, key=memory.step_bytes)
        resident, step = memory.resident, memory.step_bytes(capacity)
        step = max(step, int(step * (1 + memory.overhead)))
        gradients = min(resident.gradients, step)
        slot = max(memory.batch.of(c) for c in capacities)
        lines = {
            "parameters": resident.parameters,
            "buffers": resident.buffers,
            GRADIENTS: gradients,
            "optimizer state": resident.optimizer,
            "slots": slots * slot,
            STEP: step - gradients,
            "library workspaces": memory.workspace_bytes,
        }
        if recorded > 1 and gradients:
            lines[MORE_GRADIENTS] = (recorded - 1) * gradients
        if self.data_set_bytes:
            lines["data set"] = self.data_set_bytes
        return Breakdown(lines, HOST_SLOTS * slot, capacity, memory.binding(capacity))

    def fits(
        self,
        memory: MemoryModel,
        capacities: Sequence[Capacity],
        *,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> bool:
        """Whether a plan of these capacities stays within the cap."""
        breakdown = self.breakdown(memory, capacities, slots=slots, recorded=recorded)
        return breakdown.total_bytes <= self.max_bytes

    def check(
        self,
        memory: MemoryModel,
        capacities: Sequence[Capacity],
        *,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> Breakdown:
        """Returns the breakdown of a plan that fits.

        Raises:
            BudgetExceeded: the plan does not fit; the message has the breakdown, the floor and the
                remedies.
        """

        def needs(*capacities: Capacity) -> Breakdown:
            """The breakdown of a plan of other capacities."""
            return self.breakdown(memory, capacities, slots=slots, recorded=recorded)

        breakdown = needs(*capacities)
        if breakdown.total_bytes <= self.max_bytes:
            return breakdown
        raise BudgetExceeded(
            f"the plan needs {human_bytes(breakdown.total_bytes)}, the cap is "
            f"{human_bytes(self.max_bytes)} ({self.device}):\n{breakdown}\n"
            f"{self._remedies(breakdown, lambda bucket: needs(bucket).total_bytes)}",
            breakdown,
            breakdown.total_bytes,
        )

    def _remedies(self, breakdown: Breakdown, bytes_of: Callable[[Capacity], int]) -> str:
        """The three remedies, each with its number; ``bytes_of`` a plan of a single bucket."""
        bucket = breakdown.bucket
        raise_it = f"raise the cap to {breakdown.total_bytes:,} bytes, the floor for this plan"
        smallest = scaled(bucket, 0.0)
        if bytes_of(smallest) > self.max_bytes:
            return (
                f"Either {raise_it}, or use a smaller model: even a bucket of one graph, "
                f"{smallest}, needs {human_bytes(bytes_of(smallest))}"
            )
        steps = 1 << 20
        at_most = largest(lambda k: bytes_of(scaled(bucket, k / steps)) <= self.max_bytes, 0, steps)
        fitting = scaled(bucket, at_most / steps)
        extra = "".join(f", {how_many(rows, 'row')} of {name}" for name, rows in fitting.extra)
        return (
            f"Either {raise_it}, or take batches of at most "
            f"{how_many(fitting.graph_limit, 'graph')}, or buckets of at most "
            f"{how_many(fitting.nodes, 'node')} (with {how_many(fitting.edges, 'edge')}{extra})"
        )

    def __str__(self) -> str:
        besides = (
            f"; {human_bytes(self.driver_bytes)} taken by the driver and others, "
            f"{human_bytes(self.headroom_bytes)} left free"
            if self.driver_bytes or self.headroom_bytes
            else ""
        )
        return f"at most {human_bytes(self.max_bytes)} ({self.device}{besides})"


def scaled(capacity: Capacity, share: float, edges: int = 0) -> Capacity:
    """Scales a capacity by a share, at least to where it still holds its largest graph, and these
    edges."""
    largest_graph = capacity.max_graph_nodes
    return Capacity.distinct(
        max(largest_graph + capacity.node_reserve, int(capacity.nodes * share)),
        max(edges, capacity.edge_reserve, int(capacity.edges * share)),
        max(2, int(capacity.graphs * share)),
        largest_graph,
        [(name, max(1, int(rows * share))) for name, rows in capacity.extra],
        capacity.edge_reserve,
        capacity.node_reserve,
    )


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in ``[low, high]`` that fits, where ``low`` does, and all smaller ones."""
    if fits(high):
        return high
    return low + bisect_right(range(low + 1, high), False, key=lambda number: not fits(number))
