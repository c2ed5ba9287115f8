"""Bytes of a step as a function of the capacity, fitted to measured points.

The problem: which capacities fit a device must be known before the first step, and the bytes of a
step depend on the model in ways that are tedious to derive by hand. The idea: measure a few
capacities and fit a short sum of counts with coefficients that cannot be negative::

    linear     fixed + a*N + b*E + g*G + p*G*M
    attention  linear + c*G*M^2
    quadratic  fixed + a*N + b*E + g*G + q*N^2

``N, E, G`` are nodes, edges and graphs of the capacity and ``M`` the nodes of its largest graph.
The rows of the data's own axes (nodes and edges of a type, triplets) add one term each; where nodes
have types, the totals of nodes and edges are sums of these, and their own terms are left out. Where
a layer runs other operations for larger graphs, each side of that width has a separate fit.
Which form holds is determined, not assumed: fused attention turns out to be linear, explicit
weights do not. Where the reader knows what is live after every operation, each moment has its own
sum and the peak is the largest of them: the moment of the peak at few edges need not be the one at
many. The invariant: a model is returned only if the points determine it (more points than unknowns,
with nodes, edges and graphs varied independently) and if it explains them to within 5%; otherwise
the reason is given.

Bytes that exist before the step are kept apart (:mod:`.memory_model`), so that the fixed term holds
only what the step adds. Pure numbers, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import FitRefused
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many

FloatArray = NDArray[np.float64]
Form = Literal["linear", "attention", "quadratic"]


def counts_of(capacity: Capacity) -> dict[str, float]:
    """Every count that a form may have."""
    places = capacity.graphs * capacity.max_graph_nodes
    return {
        "fixed": 1.0,
        "nodes": float(capacity.nodes),
        "edges": float(capacity.edges),
        "graphs": float(capacity.graphs),
        "places": float(places),
        "pairs": float(places * capacity.max_graph_nodes),
        "nodes^2": float(capacity.nodes) ** 2,
        **{rows_of(name): float(rows) for name, rows in capacity.extra},
    }


def rows_of(axis: str) -> str:
    """The term of an axis, which cannot collide with ``nodes`` or another term of a form."""
    return f"rows of {axis}"


TERMS: dict[Form, tuple[str, ...]] = {
    "linear": ("fixed", "nodes", "edges", "graphs", "places"),
    "attention": ("fixed", "nodes", "edges", "graphs", "places", "pairs"),
    "quadratic": ("fixed", "nodes", "edges", "graphs", "nodes^2"),
}
# The terms that are sums over the axes where nodes have types.
SUMS = ("nodes", "edges")


def terms_of(form: Form, axes: Sequence[str] = (), typed: bool = False) -> tuple[str, ...]:
    """The terms of a form over data with these axes."""
    terms = tuple(term for term in TERMS[form] if not (typed and term in SUMS))
    return terms + tuple(map(rows_of, axes))


# A form that misses a point by more than this does not describe the model.
WORST_RESIDUAL = 0.05
# A simpler form is taken if it is this good; the fake-tensor reader has no noise at all.
GOOD_RESIDUAL = 0.01
# Enough to hit every moment that is the peak over a noticeable range of capacities.
ENVELOPE_SAMPLES = 1000
# How a term grows with the size of a batch, where not in proportion.
POWERS = {"fixed": 0, "nodes^2": 2}


class FitPoint(NamedTuple):
    """The memory that a step adds to what existed before it.

    Attributes:
        capacity: where it was measured.
        nbytes: bytes added at the peak.
        moments: bytes added after every operation, ``[operations]`` float64, as many at every
            point; None at all points where they are not known.
    """

    capacity: Capacity
    nbytes: float
    moments: FloatArray | None = None


class Fit(NamedTuple):
    """Coefficients of a form, and how well they explain the points.

    Attributes:
        form: which sum of counts.
        planes: bytes per count, in the order of :attr:`terms`, none negative; one sum for each
            moment of the step that is the peak at some capacity. The peak is the largest of them.
        residual: largest relative error over the fitted points.
        held_out: relative error on the held-out point; None where there was none.
        note: which forms were tried and rejected, for people.
        axes: the data's own axes, whose rows are one term each, after those of the form.
        typed: whether nodes have types, so that :data:`SUMS` are not terms.
        pieces: fits that replace this one where steps run other operations; the last that applies.
        above: a piece is for capacities whose largest graph has more nodes than this.
    """

    form: Form
    planes: tuple[tuple[float, ...], ...]
    residual: float = 0.0
    held_out: float | None = None
    note: str = ""
    axes: tuple[str, ...] = ()
    typed: bool = False
    pieces: tuple[Fit, ...] = ()
    above: int = 0

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the counts that the numbers of a plane multiply."""
        return terms_of(self.form, self.axes, self.typed)

    def predict(self, capacity: Capacity) -> float:
        """The bytes that a step adds at this capacity."""
        return sum(self.shares(capacity).values())

    def shares(self, capacity: Capacity) -> dict[str, float]:
        """The bytes of each term at the moment of the peak.

        Raises:
            ValueError: the capacity has other axes than the data that was probed.
        """
        nodes = capacity.max_graph_nodes
        here = next((piece for piece in reversed(self.pieces) if nodes > piece.above), self)
        names = [name for name, _ in capacity.extra]
        if set(names) != set(self.axes):
            raise ValueError(
                f"the model of memory counts rows of {', '.join(self.axes) or 'no axis'}, and the "
                f"capacity has those of {', '.join(names) or 'none'}: probe with the data that the "
                "plan is for"
            )
        counts = counts_of(capacity)
        row = [counts[term] for term in here.terms]
        peak = max((list(map(mul, plane, row)) for plane in here.planes), key=sum)
        return dict(zip(here.terms, peak, strict=True))

    @property
    def worst(self) -> float:
        """The largest residual or held-out error, of this fit and all pieces."""
        worst = max(self.residual, self.held_out or 0.0)
        return max([worst, *(piece.worst for piece in self.pieces)])

    def to_dict(self) -> dict[str, Any]:
        """The fit as plain values, for JSON."""
        return {
            **({"above": self.above} if self.above else {}),
            "form": self.form,
            "terms": list(self.terms),
            **({"axes": list(self.axes), "typed": self.typed} if self.axes else {}),
            "planes": [list(plane) for plane in self.planes],
            "residual": self.residual,
            "held_out": self.held_out,
            "fit_note": self.note,
            **({"pieces": [piece.to_dict() for piece in self.pieces]} if self.pieces else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Fit:
        """Rebuilds a fit from the output of :meth:`to_dict`.

        Raises:
            KeyError: a value is missing.
            TypeError: a value has the wrong type.
            ValueError: a form, terms or a layout that do not exist.
        """
        form: Form = values["form"]
        if form not in TERMS:
            raise ValueError(f"form {form!r} is none of {', '.join(TERMS)}: probe the model again")
        axes, typed = tuple(values.get("axes", ())), values.get("typed", False)
        if tuple(values["terms"]) != (terms := terms_of(form, axes, typed)):
            raise ValueError(f"{form} has the terms {values['terms']}, not {terms}")
        if values.get("layout", "dense") != "dense":  # of a version with attention in blocks
            raise ValueError(f"layout {values['layout']!r} is no longer known: probe again")
        if values.get("counted"):  # of a version with a fit over real counts
            raise ValueError("a model of real counts is no longer known: probe again")
        return cls(
            form,
            tuple(map(tuple, values["planes"])),
            values["residual"],
            values["held_out"],
            values["fit_note"],
            axes,
            typed,
            tuple(map(cls.from_dict, values.get("pieces", ()))),
            values.get("above", 0),
        )


def capacities_above(nodes: int) -> str:
    """Names the capacities that a piece is for."""
    return f"with more than {how_many(nodes, 'node')} in the largest graph"


def fit(
    points: Sequence[FitPoint],
    form: Form | Literal["auto"] = "auto",
    held_out: FitPoint | None = None,
    *,
    typed: bool = False,
) -> Fit:
    """Fits a form by non-negative least squares on relative errors.

    Args:
        points: the measured points; more of them than the form has terms.
        form: one of :data:`TERMS`, or ``auto``: the first that is within 1% everywhere, else the
            one with the smallest error.
        held_out: a point to check on, not fitted.
        typed: whether nodes have types: all nodes and all edges are then sums of the capacities'
            axes.

    Raises:
        FitRefused: too few points, points that do not separate the terms, or a residual over 5%.
    """
    fits: list[Fit] = []
    refusals: list[str] = []
    tried: Sequence[Form] = [*TERMS] if form == "auto" else (form,)
    for name in tried:
        try:
            fits.append(_fit_form(points, name, held_out, typed))
        except FitRefused as refusal:
            refusals.append(f"{name}: {refusal}")
            continue
        if fits[-1].worst <= GOOD_RESIDUAL:
            break
    if not fits:
        raise FitRefused("; ".join(refusals))
    best = min(fits, key=lambda f: f.worst)
    rejected = [f"{f.form} misses by {100 * f.worst:.1f}%" for f in fits if f.form != best.form]
    if best.residual > WORST_RESIDUAL:
        worst = max(points, key=lambda p: abs(best.predict(p.capacity) / p.nbytes - 1))
        raise FitRefused(
            f"the {best.form} form misses {worst.capacity} by {100 * best.residual:.1f}% "
            f"({human_bytes(worst.nbytes)} measured, "
            f"{human_bytes(best.predict(worst.capacity))} fitted), more than "
            f"{100 * WORST_RESIDUAL:.0f}%: try form='auto', or measure again with nothing else "
            "on the device"
        )
    return best._replace(note="; ".join(rejected))


def _fit_form(
    points: Sequence[FitPoint],
    form: Form,
    held_out: FitPoint | None,
    typed: bool,
) -> Fit:
    axes = tuple(name for name, _ in points[0].capacity.extra) if points else ()
    terms = terms_of(form, axes, typed)
    if len(points) <= len(terms):
        raise FitRefused(
            f"{how_many(len(points), 'point')} for the {how_many(len(terms), 'unknown')} of the "
            f"{form} form ({', '.join(terms)}): measure at least {len(terms) + 1}"
        )
    if any(not (math.isfinite(p.nbytes) and p.nbytes > 0) for p in points):
        raise FitRefused("a point has no positive number of bytes: was the step really run?")
    counts = np.array([[counts_of(point.capacity)[term] for term in terms] for point in points])
    most = counts.max(axis=0)
    if not most.all() or np.linalg.matrix_rank(counts / most, tol=1e-6) < len(terms):
        raise FitRefused(
            f"the points do not tell {', '.join(terms)} apart: vary "
            f"{', '.join((*(() if typed else SUMS), *axes, 'graphs'))} and the largest graph each "
            "by itself"
        )
    peaks = np.array([p.nbytes for p in points])
    weighted = counts / peaks[:, None]
    # A step runs the same operations at every capacity, and the live memory after each of them is
    # an exact sum of counts; only which of them is the largest changes. All moments are fitted at
    # once, and those are kept that are the largest at some capacity.
    live = [[p.nbytes] if p.moments is None else p.moments for p in points]
    moments = np.unique(np.stack(live), axis=1)
    free, *_ = np.linalg.lstsq(weighted, moments / peaks[:, None], rcond=None)
    highest = np.argmax(_varied(counts, terms) @ free, axis=1)
    targets = moments[:, np.unique(highest)]
    planes = np.unique([non_negative(weighted, t / peaks) for t in targets.T], axis=0)
    errors = np.abs((counts @ planes.T).max(axis=1) / peaks - 1)
    plain = tuple(map(tuple, planes.tolist()))
    fit = Fit(form, plain, float(errors.max()), axes=axes, typed=typed)
    if held_out is None:
        return fit
    missed = abs(fit.predict(held_out.capacity) / held_out.nbytes - 1)
    return fit._replace(held_out=float(missed))


def _varied(counts: FloatArray, terms: Sequence[str]) -> FloatArray:
    """Counts from a tenth to a thousand times those of the points, and varied apart.

    Args:
        counts: ``[points, terms]``.
        terms: their names.

    Returns:
        ``[samples, terms]`` float64.
    """
    generator = np.random.default_rng(0)
    rows = np.resize(counts, (ENVELOPE_SAMPLES, len(terms)))
    size = 10.0 ** generator.uniform(-1.0, 3.0, (ENVELOPE_SAMPLES, 1))
    apart = np.exp(generator.uniform(-1.5, 1.5, rows.shape))
    return rows * (size * apart) ** [POWERS.get(term, 1) for term in terms]


def non_negative(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Coefficients ``[C]`` of ``columns`` ``[n, C]``, none negative, that explain ``target``.

    Plain least squares; while a coefficient is negative, the most negative one leaves. Among 6,000
    sums with 2% of noise, the error was that of the best non-negative solution in 99.6%, and at
    most 7% above it in the others (2026-11-29, by a script that is not kept).
    """
    columns = columns / (norms := np.linalg.norm(columns, axis=0))
    inside = np.ones(len(norms), bool)
    while True:
        coefficients = np.zeros(len(norms))
        coefficients[inside], *_ = np.linalg.lstsq(columns[:, inside], target, rcond=None)
        if coefficients.min() >= 0:
            return coefficients / norms
        inside[np.argmin(coefficients)] = False
