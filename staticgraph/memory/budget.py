"""A hard cap on every byte that this library makes torch hold, decided before the first step.

The problem: a recording that runs out of memory midway leaks its pool for the life of the
process, so whether a plan fits must be decided before anything is compiled. The idea: add up what
is known (model, optimizer state, slots, one pool as large as the largest bucket needs, library
workspaces), compare with the cap, and refuse with the sum, the floor and the remedies in numbers.
The invariants: the lines of a breakdown add up to its total; whatever is accepted fits the cap;
a bigger cap accepts whatever a smaller one did.

What it does not do: measure. Pure arithmetic, no torch; only :meth:`MemoryBudget.of_device` asks a
device, through :mod:`staticgraph.probing`. The contract (breakdown, floor, remedies, and
another error for a consumer that keeps batches) follows damacy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from staticgraph.errors import BudgetExceeded, FitRefused
from staticgraph.memory.model import MemoryModel
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes, parse_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table

__all__ = [
    "Breakdown",
    "BudgetExceeded",
    "FitRefused",
    "Ledger",
    "MemoryBudget",
    "MemoryModel",
    "breakdown_of",
    "largest",
    "scaled",
]

# A batch in use and the next one being copied in.
DEVICE_SLOTS = 4
HOST_SLOTS = 2
# A line of the breakdown.
MORE_GRADIENTS = "gradients of further recordings"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What a plan makes torch hold on the device, in bytes.

    Attributes:
        parameters, buffers, gradients, optimizer: the model and what training it keeps.
        slots: the batches on the device, all of them.
        pool: what a step adds, gradients apart: one pool, as large as the largest bucket needs.
        workspaces: of cuBLAS and its like.
        pinned_host: slots in host memory; not part of the total.
        bucket: the capacity that sets ``pool``.
        binding: what takes most of it.
        data_set: the graphs themselves, where they are kept on the device.
        more_gradients: of all recordings of a training step but one: each writes its own, which
            stay where the next recording takes its memory from.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    slots: int
    pool: int
    workspaces: int
    pinned_host: int
    bucket: Capacity
    binding: str
    data_set: int = 0
    more_gradients: int = 0

    @property
    def lines(self) -> dict[str, int]:
        """The lines of the total, by name."""
        lines = {
            "parameters": self.parameters,
            "buffers": self.buffers,
            "gradients": self.gradients,
            "optimizer state": self.optimizer,
            "slots": self.slots,
            "step (largest bucket)": self.pool,
            "library workspaces": self.workspaces,
        }
        more = {MORE_GRADIENTS: self.more_gradients, "data set": self.data_set}
        return lines | {name: nbytes for name, nbytes in more.items() if nbytes}

    @property
    def total_bytes(self) -> int:
        """All lines together."""
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


def breakdown_of(
    memory: MemoryModel,
    capacities: Sequence[Capacity],
    *,
    slots: int = DEVICE_SLOTS,
    host_slots: int = HOST_SLOTS,
    data_set: int = 0,
    recorded: int = 1,
) -> Breakdown:
    """What a plan of these capacities makes torch hold on the device.

    Every slot is as large as the largest bucket wants, and so is the one pool that all recordings
    share: the largest, not the sum. Gradients alone are not shared.

    Args:
        memory: predicts the bytes of a step.
        capacities: of the buckets.
        slots, host_slots: batches that are alive at once, on the device and pinned on the host.
        data_set: bytes of the graphs, where they are on the device.
        recorded: recordings of a training step, each with gradients of its own; 1 where nothing
            is recorded.
    """
    capacity = max(capacities, key=memory.step_bytes)
    resident, step = memory.resident, memory.step_bytes(capacity)
    step = max(step, int(step * (1 + memory.overhead)))
    gradients = min(resident.gradients, step)
    slot = max(memory.batch.of(c) for c in capacities)
    return Breakdown(
        parameters=resident.parameters,
        buffers=resident.buffers,
        gradients=gradients,
        optimizer=resident.optimizer,
        slots=slots * slot,
        pool=step - gradients,
        workspaces=memory.workspace_bytes,
        pinned_host=host_slots * slot,
        bucket=capacity,
        binding=memory.binding(capacity),
        data_set=data_set,
        more_gradients=(max(1, recorded) - 1) * gradients,
    )


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A cap. ``MemoryBudget("20GiB")``, or :meth:`of_device`.

    Attributes:
        max_bytes: what this library may make torch hold on the device; text such as ``"20GiB"`` is
            read by :func:`staticgraph.text.byte_sizes.parse_bytes`.
        driver_bytes: taken already by the driver and by others; for people, not part of the cap.
        headroom_bytes: left free on purpose; likewise.
        device: what the cap belongs to.
        data_set_bytes: of the cap, what a data set on the device takes; a line of every breakdown.
        memory: predicts a step's bytes; who needs it and finds None probes the model.
    """

    max_bytes: int
    driver_bytes: int = 0
    headroom_bytes: int = 0
    device: str = "given by hand"
    data_set_bytes: int = 0
    memory: MemoryModel | None = None

    if TYPE_CHECKING:  # the cap may be given as text; it is kept as a number

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

    @classmethod
    def of_device(
        cls, device: Any = None, *, safety: float = 0.95, max_bytes: int | str | None = None
    ) -> MemoryBudget:
        """The share ``safety`` of what a device has for this process, at most ``max_bytes``.

        What torch holds already counts as ours, since the model that is counted in the plan is a
        part of it: it is counted once. On the CPU the free main memory is taken.

        Args:
            device: a torch device or its name; the present CUDA device, else the CPU, where None.
            safety: above 0, at most 1.
            max_bytes: a hard cap of your own, in bytes or as text.

        Raises:
            ValueError: ``safety`` is no such share, or the memory of the device cannot be read.
        """
        from staticgraph.memory.device import device_memory

        if not 0 < safety <= 1:
            raise ValueError(f"safety={safety} must be above 0 and at most 1, such as 0.95")
        found = device_memory(device)
        ours = found.free_bytes + found.held_bytes
        most = int(safety * ours)
        if max_bytes is not None:
            most = min(most, parse_bytes(max_bytes))
        driver = found.total_bytes - ours
        return cls(most, driver, ours - most, found.name)

    def with_data_set(self, nbytes: int) -> MemoryBudget:
        """The same cap, of which a data set of so many bytes on the device takes its part too."""
        return replace(self, data_set_bytes=self.data_set_bytes + nbytes)

    def with_memory(self, memory: MemoryModel) -> MemoryBudget:
        """The same cap, with what predicts the bytes of a step, as :func:`staticgraph.probe` gives
        it."""
        return replace(self, memory=memory)

    def breakdown(
        self,
        memory: MemoryModel,
        capacities: Sequence[Capacity],
        *,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> Breakdown:
        """What a plan of these capacities takes, fitting or not; see :func:`breakdown_of`."""
        return breakdown_of(
            memory, capacities, slots=slots, data_set=self.data_set_bytes, recorded=recorded
        )

    def fits(
        self,
        memory: MemoryModel,
        capacities: Sequence[Capacity],
        *,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> bool:
        """Whether a plan of these capacities stays within the cap."""
        found = self.breakdown(memory, capacities, slots=slots, recorded=recorded)
        return found.total_bytes <= self.max_bytes

    def check(
        self,
        memory: MemoryModel,
        capacities: Sequence[Capacity],
        *,
        slots: int = DEVICE_SLOTS,
        recorded: int = 1,
    ) -> Breakdown:
        """The breakdown of a plan that fits.

        Raises:
            BudgetExceeded: it does not; the message has the breakdown, the floor and the remedies.
        """
        found = self.breakdown(memory, capacities, slots=slots, recorded=recorded)
        if found.total_bytes <= self.max_bytes:
            return found
        raise BudgetExceeded(
            f"the plan needs {human_bytes(found.total_bytes)}, the cap is "
            f"{human_bytes(self.max_bytes)} ({self.device}):\n{found}\n"
            f"{self._remedies(memory, found, slots, recorded)}",
            found,
            found.total_bytes,
        )

    def _remedies(self, memory: MemoryModel, found: Breakdown, slots: int, recorded: int) -> str:
        """The three ways out, each with its number."""

        def fits(capacity: Capacity) -> bool:
            """Whether a bucket of this capacity stays within the cap alone."""
            return self.fits(memory, [capacity], slots=slots, recorded=recorded)

        bucket = found.bucket
        raise_it = f"raise the cap to {found.total_bytes:,} bytes, the floor for this plan"
        smallest = scaled(bucket, 0.0)
        if not fits(smallest):
            least = self.breakdown(memory, [smallest], slots=slots, recorded=recorded).total_bytes
            return (
                f"Either {raise_it}, or use a smaller model: even a bucket of one graph, "
                f"{smallest}, needs {human_bytes(least)}"
            )
        steps = 1 << 20
        at_most = largest(lambda k: fits(scaled(bucket, k / steps)), 0, steps)
        fitting = scaled(bucket, at_most / steps)
        own = "".join(f", {how_many(rows, 'row')} of {name}" for name, rows in fitting.extra)
        return (
            f"Either {raise_it}, or take batches of at most "
            f"{how_many(fitting.graph_limit, 'graph')}, or buckets of at most "
            f"{how_many(fitting.nodes, 'node')} (with {how_many(fitting.edges, 'edge')}{own})"
        )

    def __str__(self) -> str:
        besides = (
            f"; {human_bytes(self.driver_bytes)} taken by the driver and others, "
            f"{human_bytes(self.headroom_bytes)} left free"
            if self.driver_bytes or self.headroom_bytes
            else ""
        )
        return f"at most {human_bytes(self.max_bytes)} ({self.device}{besides})"


def scaled(capacity: Capacity, share: float) -> Capacity:
    """A share of a capacity that still holds its largest graph."""
    largest_graph = capacity.max_graph_nodes
    return Capacity.distinct(
        max(largest_graph + capacity.node_reserve, int(capacity.nodes * share)),
        max(capacity.edge_reserve, int(capacity.edges * share)),
        max(2, int(capacity.graphs * share)),
        largest_graph,
        [(name, max(1, int(rows * share))) for name, rows in capacity.extra],
        capacity.edge_reserve,
        capacity.node_reserve,
    )


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in ``[low, high]`` that fits, where all smaller ones do.

    Raises:
        ValueError: ``low`` does not fit.
    """
    if not fits(low):
        raise ValueError(f"not even {low} fits")
    if fits(high):
        return high
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(slots=True)
class Ledger:
    """Bytes committed so far, under a cap. An entry grows and never shrinks.

    A pool that several recordings share is one entry: committing a smaller need changes nothing.
    """

    max_bytes: int | None = None
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def bytes_committed(self) -> int:
        """All entries together."""
        return sum(self.entries.values())

    def commit(self, name: str, nbytes: int) -> None:
        """Raises an entry to so many bytes, if it is lower.

        Raises:
            BudgetExceeded: the sum would pass the cap; nothing is committed.
        """
        before = self.entries.get(name, 0)
        needed = self.bytes_committed + max(0, nbytes - before)
        if self.max_bytes is not None and needed > self.max_bytes:
            raise BudgetExceeded(
                f"{name} wants {human_bytes(nbytes)}, of which {human_bytes(before)} are "
                f"committed; that makes {human_bytes(needed)}, the cap is "
                f"{human_bytes(self.max_bytes)}: raise the cap to {needed:,} bytes, or take "
                "smaller buckets",
                None,
                needed,
            )
        self.entries[name] = max(before, nbytes)

    def release(self) -> None:
        """Forgets everything: what was committed was torn down together."""
        self.entries.clear()
