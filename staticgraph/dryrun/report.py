"""The result of a dry run, as data, JSON and a table. Without torch: both processes share it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.table import as_preformatted, table

PARTS = ("forward", "backward", "optimizer")
KINDS = ("staticgraph", "inductor", "library", "copy", "host")
Counts = dict[str, dict[str, dict[str, int]]]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a step is not recorded in one piece: a short reason, the operation, and the line."""

    reason: str
    operation: str = ""
    where: str = ""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return ": ".join(filter(None, (self.reason, self.operation))) + place


@dataclass(frozen=True, slots=True)
class BucketRun:
    """The result for one mode, bucket and phase.

    Attributes:
        mode: as for :class:`staticgraph.StaticGraphRunner`.
        bucket: the number of the bucket.
        capacity: of the bucket, as text.
        phase: ``step`` or ``eval``.
        pieces: recordings that the mode would make of it; None where the mode records nothing.
        expected: how many recordings a whole one takes.
        causes: why it is not whole.
        error: the error that stopped it, if any; nothing was counted then.
        graphs, graph_breaks: of Dynamo.
        partitions: number of pieces of each compiled graph, where torch splits it.
        devices: the devices that the compiled graphs compute on.
        mutated_not_static: number of inputs that are written and may move.
        launches: part -> kind -> name -> launches; kinds as in
            :mod:`staticgraph.dryrun.launches`.
        operators: part -> operator -> calls.
        resident_bytes: parameters, optimizer state and inputs.
        peak_bytes: the most that is live at once, including those; without library workspaces.
        reserved_bytes: what torch's caching allocator would take from the driver for the peak.
        moments: part, name and live bytes at each launch or allocation; only on request.
        moved_bytes: every tensor of every launch once.
        flops: of products and attention.
        at_least_s: the roofline bound: for each launch the longer of its bytes over the bandwidth
            and its products over the peak rate, summed. No step takes less; most take more.
        compile_s: on this machine.
    """

    mode: str
    bucket: int
    capacity: str
    phase: str
    pieces: int | None = None
    expected: int | None = None
    causes: tuple[Cause, ...] = ()
    error: str | None = None
    graphs: int = 0
    graph_breaks: int = 0
    partitions: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    mutated_not_static: int = 0
    launches: Counts = field(default_factory=dict)
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    resident_bytes: int = 0
    peak_bytes: int = 0
    reserved_bytes: int = 0
    moments: tuple[tuple[str, str, int], ...] = ()
    moved_bytes: int = 0
    flops: int = 0
    at_least_s: float = 0.0
    compile_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it runs, and is recorded whole if its mode records."""
        return self.error is None and self.pieces == self.expected

    def count(self, part: str | None = None, kind: str | None = None) -> int:
        """The number of launches of a part and a kind, or of all."""
        return sum(
            number
            for name, kinds in self.launches.items()
            for of_kind, names in kinds.items()
            for number in names.values()
            if part in (None, name) and kind in (None, of_kind)
        )

    def calls(self) -> int:
        """The number of operator calls."""
        return sum(sum(counts.values()) for counts in self.operators.values())

    def records(self) -> str:
        """How it is recorded, in words."""
        if self.error is None and self.pieces is None:
            return "not asked to"
        if not self.pieces:
            return "not at all"
        if self.ok:
            return "in one piece" if self.pieces == 1 else "forward and backward"
        return f"in {how_many(self.pieces, 'piece')} instead of {self.expected}"


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What ptxas reported for one Triton kernel on the target.

    Attributes:
        name: ``operator.function`` for this library's kernels.
        owner: ``staticgraph`` or ``inductor``.
        registers: per thread.
        spill_bytes: per thread, as reported by ptxas; arrays of the program itself do not count.
        shared_bytes, warps: per thread block.
        vector_loads: loads of two, four or eight values at once, in the PTX.
        atomics: atomic operations in the PTX, whose order is not fixed; of this library's
            kernels only draws of tickets, which no result depends on.
        load_bits: of the widest vector that is loaded from the device's memory at once, including
            copies to shared memory; 0 where numbers are loaded one by one.
    """

    name: str
    owner: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    warps: int
    vector_loads: int
    atomics: int
    load_bits: int = 0


@dataclass(frozen=True, slots=True)
class DryRun:
    """A report; prints as a table, and is true if every run is whole.

    Attributes:
        target: name of the device.
        device: its name as reported by its driver.
        torch: version.
        model: class name.
        kernels: whether the model used the fused kernels.
        autocast: the dtype's name.
        runs: see :class:`BucketRun`.
        uses: see :class:`KernelUse`.
        emulated: replacements for behavior that only the device determines.
        notes: further remarks, such as a stand-in for a loss.
    """

    target: str
    device: str
    torch: str
    model: str
    kernels: bool
    autocast: str | None
    runs: tuple[BucketRun, ...]
    uses: tuple[KernelUse, ...] = ()
    emulated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether every run is whole."""
        return all(run.ok for run in self.runs)

    def run(self, mode: str, phase: str = "step", bucket: int = 0) -> BucketRun:
        """Returns one of the runs.

        Raises:
            KeyError: there is no such run.
        """
        for run in self.runs:
            if (run.mode, run.phase, run.bucket) == (mode, phase, bucket):
                return run
        raise KeyError(f"no run of mode {mode!r}, phase {phase!r}, bucket {bucket}")

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"ok": self.ok, "label": self.label}

    @property
    def label(self) -> str:
        """A sentence that says what the report is, and what it is not."""
        return f"compiled for {self.device}, not run on one; no time of a step is promised"

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        options = ["with kernels" if self.kernels else "without kernels", self.autocast or ""]
        lines = [
            f"{self.model}, torch {self.torch}, {', '.join(o for o in options if o)}: {self.label}",
        ]
        if counted := tuple(run for run in self.runs if run.error is None):
            lines += ["", _runs_table(counted)]
        for run in self.runs:
            details = [f"  {cause}" for cause in run.causes]
            details += [f"  {run.error}"] if run.error and not run.causes else []
            if details:
                lines += [
                    "",
                    f"{run.mode}, bucket {run.bucket}, {run.phase}: {run.records()}",
                    *details,
                ]
        if self.uses:
            lines += ["", _uses_table(self.uses)]
        lines += ["", *(f"emulated: {text}" for text in self.emulated)]
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(lines)


def _runs_table(runs: tuple[BucketRun, ...]) -> str:
    headers = ["mode", "bucket", "phase", "records", "breaks", "operators", "launches", *PARTS]
    headers += ["ours", "Inductor's", "peak", "moved", "at least, us"]
    return table(
        headers,
        [
            [
                run.mode,
                run.bucket,
                run.phase,
                run.records(),
                run.graph_breaks,
                run.calls(),
                run.count(),
                *(run.count(part) for part in PARTS),
                run.count(kind="staticgraph"),
                run.count(kind="inductor"),
                human_bytes(run.peak_bytes),
                human_bytes(run.moved_bytes),
                f"{1e6 * run.at_least_s:.1f}",
            ]
            for run in runs
        ],
    )


# What is shown of a kernel: headers, and attributes of :class:`KernelUse`.
USES = {
    "kernel": "name",
    "registers": "registers",
    "spilled B": "spill_bytes",
    "shared B": "shared_bytes",
    "warps": "warps",
    "vector loads": "vector_loads",
    "bits": "load_bits",
    "atomics": "atomics",
}


def _uses_table(uses: tuple[KernelUse, ...]) -> str:
    """This library's kernels, and of Inductor's, which are many, only those that spill."""
    inductors = [use for use in uses if use.owner == "inductor"]
    shown = [use for use in uses if use.owner != "inductor" or use.spill_bytes]
    rows = [attrgetter(*USES.values())(use) for use in shown]
    summary = (
        f"Inductor's: {how_many(len(inductors), 'kernel')}, at most "
        f"{max(u.registers for u in inductors)} registers, "
        f"{sum(bool(u.spill_bytes) for u in inductors)} spill, "
        f"{sum(bool(u.atomics) for u in inductors)} use atomics"
        if inductors
        else ""
    )
    return "\n\n".join(part for part in (table([*USES], rows) if rows else "", summary) if part)
