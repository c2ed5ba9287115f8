"""The report of a comparison: one row per side, the winner, and whether all computed the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from staticgraph.checking.outcome import Tolerance
from staticgraph.checking.report import obstacle_lines, obstacle_values
from staticgraph.files.document import finite, save_json
from staticgraph.runner.way_choice import MARGIN
from staticgraph.steps.tracing.obstacles import Obstacle
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.table import as_preformatted, percent, table

# Losses and outputs may differ by this share of the largest.
TOLERANCE = Tolerance.of(torch.float32).other_order


@dataclass(slots=True)
class SideReport:
    """The measurements of one side, filled in as they are made.

    Rates and ratios are medians over the turns; ``_low`` and ``_high`` are the 10th and 90th
    percentiles. They are None for a side that did not run.

    Attributes:
        name: ``PyG``, ``PyG, compiled``, or a mode.
        graphs_per_s: real graphs per second, loading included.
        ratio: speed relative to the first side that ran, turn by turn.
        prepare_s: seconds to compile and record.
        memory: ``held_bytes`` permanently, and ``step_bytes`` that a step adds at its peak.
        filling: real over physical ``nodes``, ``edges`` and ``graphs``, 0 to 1.
        losses: the losses of the first turn, step by step, from the same weights.
        losses_apart: their difference from those of the first side that ran; None for that side,
            and if random numbers are drawn.
        refused: why the side did not run.
        threads: the number of torch's threads, the faster of all and one where both were tried.
        crawls: whether a turn took more than ten times as long per batch as on one thread before.
    """

    name: str
    graphs_per_s: float | None = None
    graphs_per_s_low: float | None = None
    graphs_per_s_high: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    turns: int = 0
    prepare_s: float = 0.0
    memory: Mapping[str, int] | None = None
    filling: Mapping[str, float] | None = None
    losses: tuple[float, ...] = ()
    losses_apart: float | None = None
    refused: str | None = None
    threads: int = 1
    crawls: bool = False

    @property
    def ran(self) -> bool:
        """Whether the side was measured."""
        return self.graphs_per_s is not None

    @property
    def equal(self) -> bool | None:
        """Whether its losses equal those of the first side; None if they were not compared."""
        return None if self.losses_apart is None else self.losses_apart <= TOLERANCE


@dataclass(frozen=True, slots=True)
class VersusReport:
    """The result of :func:`staticgraph.training.versus.comparison.compare`.

    Attributes:
        graphs, batch_size: graphs per turn and per batch.
        seconds: the total time.
        sides: the sides, plain PyG first.
        workers: the number of processes with which PyG's loader was fastest.
        random: whether a step draws random numbers, so that losses cannot be compared.
        outputs_apart: the difference of outputs in evaluation mode, relative to the largest value;
            None if plain PyG or the static model does not run.
        winner: the name of the recommended side; ``""`` if none ran.
        reason: why this side is recommended; empty for the first side.
        compared_with: the first side that ran.
        obstacles: the check's obstacles, for a model that a mode refused.
    """

    model: str
    data: str
    graphs: int
    batch_size: int
    capacities: tuple[str, ...]
    device: str
    versions: Mapping[str, str]
    date: str
    seconds: float
    sides: tuple[SideReport, ...]
    workers: int
    random: bool
    outputs_apart: float | None
    winner: str
    reason: str
    compared_with: str
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all compared losses and outputs are equal."""
        apart = self.outputs_apart
        return all(side.equal is not False for side in self.sides) and (
            apart is None or apart <= TOLERANCE
        )

    @property
    def ok(self) -> bool:
        """Whether this library ran in at least one mode, and nothing that was compared differs."""
        static = [side for side in self.sides if not side.name.startswith("PyG")]
        return any(side.ran for side in static) and self.equal

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON; numbers that are not finite become None."""
        sides = [{**asdict(side), "equal": side.equal} for side in self.sides]
        values = {**asdict(self), "sides": sides, "obstacles": obstacle_values(self.obstacles)}
        return finite({"ok": self.ok, "equal": self.equal, **values})

    def submission(self, machine: Mapping[str, Any], model: str) -> str:
        """A table of one row in Markdown, to paste into an issue.

        Args:
            machine: the result of :func:`staticgraph.training.job.machine`.
            model: the name by which the model was asked for.
        """
        ratios = [
            f"{side.name} {side.ratio:.2f}" if side.ran else f"{side.name} did not run"
            for side in self.sides
            if side.name != self.compared_with
        ]
        columns = {
            "device": self.device,
            "processor": machine["processor"],
            "vectors": machine["capability"],
            "threads": f"{machine['threads']} of {machine['cores']}, load {machine['load']}",
            "torch": machine["versions"]["torch"],
            "PyG": machine["versions"]["torch_geometric"],
            "data": self.data,
            "model": model,
            "batch": str(self.batch_size),
            f"times {self.compared_with or 'PyG'}": ", ".join(ratios),
            "equal": "yes" if self.equal else "NO",
            "date": machine["date"],
        }
        rows = (list(columns), ["---"] * len(columns), map(str, columns.values()))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def save(self, path: str | Path) -> None:
        """Writes the report as JSON."""
        save_json(path, self.to_dict())

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        rows = [_columns(side, self.compared_with) for side in self.sides]
        lines = [
            f"{self.model} on {self.data}, batches of {self.batch_size}, "
            f"{how_many(self.graphs, 'graph')} per turn, on {self.device}, "
            f"{', '.join(f'{k} {v}' for k, v in self.versions.items())}",
            f"shapes: {', '.join(self.capacities)}",
            "",
            table(list(rows[0]), [list(row.values()) for row in rows]),
            "",
        ]
        # The rest of a reason, often compiler output, is only in the JSON.
        lines += [
            f"{side.name} did not run: {side.refused.splitlines()[0].rstrip(':')}"
            for side in self.sides
            if side.refused
        ]
        lines += ["what stands in the way:"] if self.obstacles else []
        lines += obstacle_lines(self.obstacles)
        if self.compared_with == "PyG":
            workers = how_many(self.workers, "worker")
            lines.append(f"PyG loads with {workers}, its fastest of 0, 1 and 2")
        lines += [
            f"WARNING: {side.name} took over ten times as long as before on one thread: the "
            "machine is busy; measure again with nothing else running"
            for side in self.sides
            if side.crawls
        ]
        return "\n".join([*lines, self._equality(), self._won()])

    def _equality(self) -> str:
        outputs, apart = "outputs were not compared", self.outputs_apart
        if apart is not None:
            verdict = "equal" if apart <= TOLERANCE else "NOT EQUAL"
            how = f"they differ by {apart:.1e} of the largest" if apart else "to the bit"
            outputs = f"outputs in evaluation mode are {verdict} ({how})"
        losses = "; a training step draws random numbers (dropout?), so losses are not compared"
        return f"before training, {outputs}{losses if self.random else ''}"

    def _won(self) -> str:
        if not self.winner:
            return "no side ran, so nothing was measured"
        first, head, unsteady = self.compared_with, "fastest", ""
        ratios = {s.name: s.ratio or 0.0 for s in self.sides if s.ran and s.equal is not False}
        won = ratios.setdefault(self.winner, 0.0)
        above = max(ratios, key=ratios.__getitem__)
        if ratios[above] >= won * (1 + MARGIN):
            head = "recommended"
            unsteady = (
                f"\n{above} is faster in the median, but not steadily (see p10 to p90): measure "
                "again with nothing else running, or longer"
            )
        if self.winner.startswith("PyG"):
            return f"{head}: {self.winner}; no mode of this library is faster here{unsteady}"
        mode, plus, _ = self.winner.partition("+")
        why = self.reason or f"the simplest mode that ran; no other is {MARGIN:.0%} faster"
        if self.reason and f"as fast as {first}," not in self.reason:
            why = f"{won:.2f} times {first}; {why}"
        model = "sg.convert(model, kernels=True)" if plus else "model"
        call = f'StaticGraphRunner({model}, plan, mode="{mode}", ...)'
        return f"{head}: {self.winner}, {why}\n  {call}{unsteady}"


def _columns(side: SideReport, first: str) -> dict[str, str]:
    """A side's row of the table; ratios are relative to ``first``, the first side that ran."""
    filling, memory = side.filling or {}, side.memory
    apart = f" ({side.losses_apart:.0e})" if side.losses_apart else ""
    loss = sum(side.losses) / max(1, len(side.losses))
    columns = {
        "graphs/s": f"{side.graphs_per_s or 0:,.0f}",
        f"times {first or 'PyG'}": f"{side.ratio or 0:.2f}",
        "p10 to p90": f"{side.ratio_low or 0:.2f} to {side.ratio_high or 0:.2f}",
        "memory": "-" if memory is None else human_bytes(sum(memory.values())),
        "nodes real": percent(filling.get("nodes")),
        "edges real": percent(filling.get("edges")),
        "loss": f"{loss:.5f}",
        "losses equal": {True: "yes", False: "NO", None: "-"}[side.equal] + apart,
        "threads": f"{side.threads}",
        "ready in": f"{side.prepare_s:.1f} s",
    }
    if side.name == first:
        columns["p10 to p90"] = "-"
    blank = dict.fromkeys(columns, "-")
    return {"contender": side.name, **(columns if side.ran else blank)}
