"""Peak bytes of a step at any capacity: resident memory, the batch, and what the step adds.

Bytes that exist before the step (parameters, buffers, optimizer state, the batch) are known exactly
and kept separate from the fit of what the step adds, so that nothing is counted twice. It does not
measure (:mod:`staticgraph.probing.probe`) or decide (:mod:`staticgraph.memory.budget`). Pure
numbers, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from staticgraph.files import document
from staticgraph.files.document import read_document
from staticgraph.memory.fit import TERMS, Fit, FitPoint, Form, capacities_above, counts_of, rows_of
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.table import as_preformatted, table

# Terms of a form that count the block of attention.
BLOCK_TERMS = ("places", "pairs")


class ResidentBytes(NamedTuple):
    """Bytes of a model that exist all the time, at any capacity."""

    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    """All gradients together; they exist from the backward to the optimizer's step."""
    optimizer: int = 0

    @property
    def before_step(self) -> int:
        """The bytes that exist when a step begins, with gradients freed."""
        return self.parameters + self.buffers + self.optimizer


class BatchBytes(NamedTuple):
    """Bytes of a slot, which are linear in the capacity; alignment is in ``fixed``."""

    fixed: float = 0.0
    per_node: float = 0.0
    per_edge: float = 0.0
    per_graph: float = 0.0
    per_axis: tuple[tuple[str, float], ...] = ()

    @property
    def per_count(self) -> dict[str, float]:
        """The bytes of each count of a capacity, by its name in :func:`counts_of`."""
        fixed, node, edge, graph, per_axis = self
        rows = {rows_of(name): nbytes for name, nbytes in per_axis}
        return {"fixed": fixed, "nodes": node, "edges": edge, "graphs": graph, **rows}

    def of(self, capacity: Capacity) -> int:
        """Bytes of one slot of this capacity, an upper bound within the alignment."""
        counts = counts_of(capacity)
        return math.ceil(sum(nbytes * counts[name] for name, nbytes in self.per_count.items()))


NOTHING_RESIDENT, NO_BATCH = ResidentBytes(), BatchBytes()


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Peak bytes of one step at any capacity.

    Attributes:
        fit: the bytes that forward and backward add.
        resident: the bytes that exist at any capacity.
        batch: the bytes of the batch itself.
        update_bytes: what the optimizer's step adds at its peak, gradients included.
        overhead: reserved over allocated bytes minus one, as the reader saw it (fragmentation).
        workspace_bytes: library workspaces that the reader saw, or that a device will need.
        points: the measured points.
        checked: the point that was held out of the fit.
        reader: how the points were measured.
        note: for people.
    """

    fit: Fit
    resident: ResidentBytes = NOTHING_RESIDENT
    batch: BatchBytes = NO_BATCH
    update_bytes: int = 0
    overhead: float = 0.0
    workspace_bytes: int = 0
    points: tuple[FitPoint, ...] = ()
    checked: FitPoint | None = None
    reader: str = "given"
    note: str = ""

    @classmethod
    def of(
        cls,
        form: Form = "linear",
        resident: ResidentBytes | None = None,
        *,
        axes: Mapping[str, float] | None = None,
        **coefficients: float,
    ) -> MemoryModel:
        """A model with given coefficients, such as ``MemoryModel.of(nodes=2048, edges=512)``.

        Bytes per row of the data's own axes are given as ``axes={"triplets": 640}``.

        Raises:
            ValueError: a coefficient that is negative, or that the form does not have.
        """
        bad = [name for name in coefficients if name not in TERMS[form]]
        terms = {**coefficients, **(axes or {})}
        negative = [name for name, value in terms.items() if value < 0]
        if bad or negative:
            raise ValueError(
                f"the {form} form has no term {bad[0]!r}; it has {', '.join(TERMS[form])}"
                if bad
                else f"{negative[0]}={terms[negative[0]]} is negative"
            )
        values = tuple(float(coefficients.get(term, 0.0)) for term in TERMS[form])
        per_axis = {name: float(value) for name, value in (axes or {}).items()}
        fit = Fit(form, ((*values, *per_axis.values()),), axes=tuple(per_axis))
        return cls(fit, resident or NOTHING_RESIDENT)

    def step_bytes(self, capacity: Capacity) -> int:
        """What a step adds at its peak to the model, optimizer state and batch.

        The margin is the most by which the fit misses a measured point.
        """
        predicted = self.fit.predict(capacity) / (1 - round(self.fit.worst, 6))
        return max(math.ceil(predicted), self.update_bytes)

    def predict(self, capacity: Capacity) -> int:
        """Peak bytes of a step, with the model, the optimizer state and one batch."""
        step = self.step_bytes(capacity)  # raises where the capacity has other axes
        return self.resident.before_step + self.batch.of(capacity) + step

    def binding(self, capacity: Capacity) -> str:
        """The term that takes most at this capacity.

        It is ``nodes``, ``edges``, ``graphs``, ``rows of`` an axis, ``attention`` or ``fixed``
        (which includes everything resident).
        """
        shares, counts = self.fit.shares(capacity), counts_of(capacity)
        shares["fixed"] += self.resident.before_step
        for term, nbytes in self.batch.per_count.items():
            shares[term] = shares.get(term, 0.0) + nbytes * counts[term]
        shares["attention"] = sum(shares.pop(term, 0.0) for term in BLOCK_TERMS)
        shares["nodes"] += shares.pop("nodes^2", 0.0)
        return max(shares, key=lambda term: shares[term])

    def to_dict(self) -> dict[str, Any]:
        """The model as plain values, for JSON."""

        def plain(point: FitPoint) -> dict[str, Any]:
            """A point of the fit as plain values."""
            return {"capacity": point.capacity.to_dict(), "bytes": point.nbytes}

        return {
            **self.fit.to_dict(),
            "resident": self.resident._asdict(),
            "batch": {k: v for k, v in self.batch._asdict().items() if k != "per_axis" or v},
            "update_bytes": self.update_bytes,
            "overhead": self.overhead,
            "workspace_bytes": self.workspace_bytes,
            "points": [plain(point) for point in self.points],
            "checked": None if self.checked is None else plain(self.checked),
            "reader": self.reader,
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> MemoryModel:
        """Rebuilds a model from the output of :meth:`to_dict`.

        Raises:
            ValueError: a key is missing or unknown.
        """

        def point(value: dict[str, Any]) -> FitPoint:
            """A point of the fit from plain values."""
            return FitPoint(Capacity.from_dict(value["capacity"]), value["bytes"])

        try:
            per_axis = tuple((str(k), v) for k, v in values["batch"].get("per_axis", ()))
            return cls(
                Fit.from_dict(values),
                ResidentBytes(**values["resident"]),
                BatchBytes(**{**values["batch"], "per_axis": per_axis}),
                values["update_bytes"],
                values["overhead"],
                values["workspace_bytes"],
                tuple(map(point, values["points"])),
                None if values["checked"] is None else point(values["checked"]),
                values["reader"],
                values["note"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a model of memory: {error!r} is missing or unknown") from error

    def save(self, path: str | Path) -> None:
        """Writes JSON atomically, with a checksum."""
        document.save(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> MemoryModel:
        """Reads what :meth:`save` wrote; raises ValueError for any other content."""
        return read_document(path, "a model of memory", cls.from_dict)

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        axes = self.fit.axes
        points = [(p, "fitted") for p in self.points]
        points += [(self.checked, "held out")] if self.checked else []
        rows = [
            (
                f"{p.capacity.nodes:,}",
                f"{p.capacity.edges:,}",
                f"{p.capacity.graphs:,}",
                p.capacity.max_graph_nodes,
                *([" / ".join(f"{rows:,}" for _, rows in p.capacity.extra)] if axes else []),
                human_bytes(p.nbytes),
                human_bytes(self.fit.predict(p.capacity)),
                f"{round(100 * (self.fit.predict(p.capacity) / p.nbytes - 1), 2) + 0.0:+.2f}%",
                role,
            )
            for p, role in points
        ]
        more = ["rows of axes"] if axes else []
        headers = ("nodes", "edges", "graphs", "largest graph", *more)
        headers += ("measured", "fitted", "error", "")
        held = "none" if self.fit.held_out is None else f"{100 * self.fit.held_out:.2f}%"
        lines = [
            f"bytes that a step adds, measured by {self.reader}",
            *([f"axes: {' / '.join(axes)}"] if axes else []),
            *([table(headers, rows)] if rows else []),
            *_described(self.fit),
            f"residual {100 * self.fit.residual:.2f}%, held-out error {held}; the optimizer's step "
            f"adds {human_bytes(self.update_bytes)}",
            f"there before: parameters {human_bytes(self.resident.parameters)}, buffers "
            f"{human_bytes(self.resident.buffers)}, optimizer state "
            f"{human_bytes(self.resident.optimizer)}",
        ]
        lines += [f"note: {note}" for note in (self.fit.note, self.note) if note]
        return "\n".join(lines)


def _described(fit: Fit) -> list[str]:
    lines = [f"bytes in {fit.form} form, the largest of:"]
    lines += [f"  {_sum(fit.terms, plane)}" for plane in fit.planes]
    for piece in fit.pieces:
        lines += [f"{capacities_above(piece.above)}:", *_described(piece)]
    return lines


def _sum(terms: Sequence[str], plane: Sequence[float]) -> str:
    """A sum such as ``8,192 fixed + 5,376 nodes + 0.5 edges``, without terms that add nothing."""
    values = [f"{value:,.1f}".removesuffix(".0") for value in plane]
    added = [f"{v} {term}" for v, term in zip(values, terms, strict=True) if v != "0"]
    return " + ".join(added) or "0"
