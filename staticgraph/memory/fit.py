"""Bytes of a step as a function of the capacity, fitted to measured points.

The problem: which capacities fit a device must be known before the first step, and the bytes of a
step depend on the model in ways that are tedious to derive by hand. The idea: measure a few
capacities and fit a short sum of counts with coefficients that cannot be negative::

    linear     fixed + a*N + b*E + g*G + p*G*M
    attention  linear + c*G*M^2
    series     attention + a sum of each block's graphs, places and pairs, before, in and after
               its turn
    blocks     attention + w*(pairs of the costliest block of several) + b*(its places)
    quadratic  fixed + a*N + b*E + g*G + q*N^2

``N, E, G`` are nodes, edges and graphs of the capacity and ``M`` the nodes of its largest graph.
The rows of the data's own axes (nodes and edges of a type, triplets) add one term each; where nodes
have types, the totals of nodes and edges are sums of these, and their own terms are left out. Where
a step runs different operations at different capacities, each :class:`Regime` has a separate fit.
Which form holds is determined, not assumed: fused attention turns out to be linear, explicit
weights do not. Where the reader knows what is live after every operation, each moment has its own
sum and the peak is the largest of them: the moment of the peak at few edges need not be the one at
many. The invariant: a model is returned only if the points determine it (more points than unknowns,
with nodes, edges and graphs varied independently) and if it explains them to within 5%; otherwise
the reason is given.

Bytes that exist before the step (parameters, buffers, optimizer state, the batch) are known exactly
and kept separate, so that the fixed term holds only what the step adds and nothing is counted
twice. It does not measure (:mod:`staticgraph.probing.probe`) or decide
(:mod:`staticgraph.memory.budget`). Pure numbers, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Literal, NamedTuple

import numpy as np

from staticgraph.errors import FitRefused
from staticgraph.memory.counts import (
    FORMS,
    LAYOUTS_OF,
    SUMS,
    TURNS,
    Form,
    Layout,
    counts_of,
    terms_of,
    turns_of,
)
from staticgraph.memory.least_squares import FloatArray, non_negative
from staticgraph.memory.regime import Regime
from staticgraph.memory.series import Moments, planes_of
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many

# A form that misses a point by more than this does not describe the model.
WORST_RESIDUAL = 0.05
# A simpler form is taken if it is this good; the fake-tensor reader has no noise at all.
GOOD_RESIDUAL = 0.01
# Where a step goes through blocks in turn, sums that were only close turned out to be far off for
# other blocks; the right form is exact.
EXACT_RESIDUAL = 0.001
# Enough to hit every moment that is the peak over a noticeable range of capacities.
ENVELOPE_SAMPLES = 1000


class FitPoint(NamedTuple):
    """The memory that a step adds to what existed before it.

    Attributes:
        capacity: where it was measured.
        nbytes: bytes added at the peak.
        moments: bytes added after every operation, ``[operations]`` float64, where the reader knows
            them.
        turns: the same moments separated by loop and block, where the step goes through blocks one
            after another.
    """

    capacity: Capacity
    nbytes: float
    moments: FloatArray | None = None
    turns: Moments | None = None


class Fit(NamedTuple):
    """Coefficients of a form, and how well they explain the points.

    Attributes:
        form: which sum of counts.
        planes: bytes per count, in the order of :attr:`terms`, none negative; one sum for each
            moment of the step that is the peak at some capacity. The peak is the largest of them.
        residual: largest relative error over the fitted points.
        held_out: relative error on the held-out point; None where there was none.
        note: which forms were tried and rejected, for people.
        layout: of the blocks whose places and pairs are counted.
        axes: the data's own axes, whose rows are one term each, after those of the form.
        typed: whether nodes have types, so that :data:`SUMS` are not terms.
        counted: whether rows and blocks of attention are those that real graphs may fill.
        pieces: regimes of capacities where the step runs different operations, each with its own
            fit, which replaces this one there.
    """

    form: Form
    planes: tuple[tuple[float, ...], ...]
    residual: float = 0.0
    held_out: float | None = None
    note: str = ""
    layout: Layout = "dense"
    axes: tuple[str, ...] = ()
    typed: bool = False
    counted: bool = False
    pieces: tuple[tuple[Regime, Fit], ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the counts that the numbers of a plane multiply."""
        return terms_of(self.form, self.axes, self.typed)

    def predict(self, capacity: Capacity) -> float:
        """The bytes that a step adds at this capacity."""
        return max(sum(shares) for _, shares in self._shares(capacity))

    def shares(self, capacity: Capacity) -> dict[str, float]:
        """The bytes of each term at the moment of the peak."""
        terms, shares = max(self._shares(capacity), key=lambda found: sum(found[1]))
        return dict(zip(terms, shares, strict=True))

    def _shares(self, capacity: Capacity) -> list[tuple[tuple[str, ...], list[float]]]:
        """The terms and the bytes of each, for every moment that may be the peak."""
        here = self.at(capacity)
        terms, counts = here.terms, here._counts(capacity)
        return [(terms, list(map(mul, plane, row))) for plane in here.planes for row in counts]

    def at(self, capacity: Capacity) -> Fit:
        """The fit that applies to a capacity: a piece, or this one."""
        return next((piece for regime, piece in self.pieces if regime.holds(capacity)), self)

    def _counts(self, capacity: Capacity) -> list[list[float]]:
        """The counts in the order of :attr:`terms`; once per block's turn, where terms need it."""
        own = [name for name, _ in capacity.extra]
        if set(own) != set(self.axes):
            raise ValueError(
                f"the model of memory counts rows of {', '.join(self.axes) or 'no axis'}, and the "
                f"capacity has those of {', '.join(own) or 'none'}: probe with the data that the "
                "plan is for"
            )
        return rows_at(capacity, self.terms, self.layout, self.counted)

    @property
    def worst(self) -> float:
        """The largest residual or held-out error, of this fit and all pieces."""
        own = max(self.residual, self.held_out or 0.0)
        return max([own, *(piece.worst for _, piece in self.pieces)])


def fit(
    points: Sequence[FitPoint],
    form: Form | Literal["auto"] = "auto",
    held_out: FitPoint | None = None,
    *,
    typed: bool = False,
    counted: bool = False,
) -> Fit:
    """Fits a form by non-negative least squares on relative errors.

    Args:
        points: the measured points; more of them than the form has terms.
        form: one of :data:`FORMS`, or ``auto``: the first that is within 1% everywhere, else the
            one with the smallest error.
        held_out: a point to check on, not fitted.
        typed: whether nodes have types: all nodes and all edges are then sums of the capacities'
            axes.
        counted: whether the layers of the measured steps may follow real counts; the fit then
            determines whether they do.

    Raises:
        FitRefused: too few points, points that do not separate the terms, or a residual over 5%.
        ValueError: an unknown form.
    """
    if form != "auto" and form not in FORMS:
        raise ValueError(f"form={form!r}; choose 'auto', {', '.join(map(repr, FORMS))}")
    fits, refusals = [], []
    in_turn = any(point.turns is not None for point in points)
    good = EXACT_RESIDUAL if in_turn else GOOD_RESIDUAL
    tried: Sequence[Form] = FORMS if form == "auto" else (form,)
    for name in tried:
        if form == "auto" and name == "series" and not in_turn:
            continue
        for layout in LAYOUTS_OF[name]:
            try:
                ways = [
                    _fit_form(points, name, layout, held_out, typed, real)
                    for real in (False, True)[: 1 + counted]
                ]
            except FitRefused as refusal:
                refusals.append(f"{name}: {refusal}")
                if name == "series":  # another layout may have as many blocks as were observed
                    continue
                break
            fits.append(min(ways, key=lambda fit: fit.worst))
            if fits[-1].worst <= good:
                break
        if fits and fits[-1].worst <= good:
            break
    if not fits:
        raise FitRefused("; ".join(refusals))
    best = min(fits, key=lambda f: f.worst)
    # The rejected forms, by name, with dense layouts only.
    given_up = [
        f"{f.form} misses by {100 * f.worst:.1f}%"
        for f in fits
        if f.form != best.form and f.layout == "dense"
    ]
    return _accepted(best._replace(note="; ".join([*given_up, best.note]).strip("; ")), points)


def _accepted(found: Fit, points: Sequence[FitPoint]) -> Fit:
    if found.residual > WORST_RESIDUAL:
        worst = max(points, key=lambda p: abs(found.predict(p.capacity) / p.nbytes - 1))
        raise FitRefused(
            f"the {found.form} form misses {worst.capacity} by {100 * found.residual:.1f}% "
            f"({human_bytes(worst.nbytes)} measured, "
            f"{human_bytes(found.predict(worst.capacity))} fitted), more than "
            f"{100 * WORST_RESIDUAL:.0f}%: try form='auto', or measure again with nothing else "
            "on the device"
        )
    return found


def _fit_form(
    points: Sequence[FitPoint],
    form: Form,
    layout: Layout,
    held_out: FitPoint | None,
    typed: bool,
    counted: bool,
) -> Fit:
    axes = tuple(name for name, _ in points[0].capacity.extra) if points else ()
    terms = terms_of(form, axes, typed)
    if form == "series":
        planes = _series(points, terms, layout, counted)
        found = Fit(form, _plain(planes), 0.0, None, "", layout, axes, typed, counted)
        errors = [abs(found.predict(p.capacity) / p.nbytes - 1) for p in points]
        return _checked(found._replace(residual=max(errors)), held_out)
    if len(points) <= len(terms):
        raise FitRefused(
            f"{how_many(len(points), 'point')} for the {how_many(len(terms), 'unknown')} of the "
            f"{form} form ({', '.join(terms)}): measure at least {len(terms) + 1}"
        )
    if any(not (math.isfinite(p.nbytes) and p.nbytes > 0) for p in points):
        raise FitRefused("a point has no positive number of bytes: was the step really run?")
    blocks = layout, counted
    counts = _counted([p.capacity for p in points], terms, blocks)
    most = counts.max(axis=0)
    if not most.all() or np.linalg.matrix_rank(counts / most, tol=1e-6) < len(terms):
        raise FitRefused(
            f"the points do not tell {', '.join(terms)} apart: vary "
            f"{', '.join((*(() if typed else SUMS), *axes, 'graphs'))} and the largest graph each "
            "by itself"
        )
    peaks = np.array([p.nbytes for p in points])
    weighted = counts / peaks[:, None]
    targets, note = _moments(points, peaks, weighted, terms, blocks), ""
    planes = np.unique([non_negative(weighted, target / peaks) for target in targets], axis=0)
    if form == "quadratic" and len(targets) == 1:
        free, *_ = np.linalg.lstsq(weighted / most, np.ones(len(points)), rcond=None)
        if free[terms.index("nodes^2")] < -GOOD_RESIDUAL * peaks.max():
            note = "negative curvature: the square was left out, the line kept"
    errors = np.abs((counts @ planes.T).max(axis=1) / peaks - 1)
    result = Fit(
        form,
        _plain(planes),
        float(errors.max()),
        None,
        note,
        layout,
        axes,
        typed,
        counted,
    )
    return _checked(result, held_out)


def _checked(found: Fit, held_out: FitPoint | None) -> Fit:
    if held_out is None:
        return found
    missed = abs(found.predict(held_out.capacity) / held_out.nbytes - 1)
    return found._replace(held_out=float(missed))


def _plain(planes: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, plane)) for plane in planes)


def rows_at(
    capacity: Capacity, terms: Sequence[str], layout: Layout, counted: bool
) -> list[list[float]]:
    """A capacity's counts in the order of ``terms``.

    There is one row, or one per block's turn where the terms need it.
    """
    counts = counts_of(capacity, layout, counted)
    turns = turns_of(capacity, layout, counted) if TURNS[0] in terms else [{}]
    return [[{**counts, **turn}[term] for term in terms] for turn in turns]


def _series(
    points: Sequence[FitPoint], terms: Sequence[str], layout: Layout, counted: bool
) -> FloatArray:
    moments = [point.turns for point in points if point.turns is not None]
    if len(moments) < len(points):
        raise FitRefused("no loop over blocks was seen at every point")
    capacities = [point.capacity for point in points]
    return planes_of(
        moments,
        capacities,
        np.array([point.nbytes for point in points]),
        terms,
        lambda capacity: np.array(rows_at(capacity, terms, layout, counted)),
        _drawn(tuple(capacities)),
    )


def _counted(
    capacities: Sequence[Capacity], terms: Sequence[str], blocks: tuple[Layout, bool]
) -> FloatArray:
    """The counts of the capacities, ``[capacities, terms]`` float64."""
    found = [counts_of(capacity, *blocks) for capacity in capacities]
    return np.array([[counts[term] for term in terms] for counts in found])


def _moments(
    points: Sequence[FitPoint],
    peaks: FloatArray,
    weighted: FloatArray,
    terms: Sequence[str],
    blocks: tuple[Layout, bool],
) -> list[FloatArray]:
    """``[points]`` bytes of each moment that is the peak of the step at some capacity.

    A step runs the same operations at every capacity, and the live memory after each of them is an
    exact sum of counts; only which of them is the largest changes. All moments are fitted at once,
    and those are kept that are the largest somewhere between a tenth and a thousand times what was
    measured.
    """
    found = [p.moments for p in points if p.moments is not None]
    if len(found) < len(points) or len({len(m) for m in found}) != 1:
        return [peaks]
    moments = np.unique(np.stack(found), axis=1)  # [points, distinct moments]
    free, *_ = np.linalg.lstsq(weighted, moments / peaks[:, None], rcond=None)
    drawn = _counted(_drawn(tuple(p.capacity for p in points)), terms, blocks)
    on_top = np.unique(np.argmax(drawn @ free, axis=1))
    return [moments[:, k] for k in on_top]


@lru_cache(maxsize=2)
def _drawn(capacities: tuple[Capacity, ...]) -> list[Capacity]:
    """Capacities from a tenth to a thousand times the given ones, with counts also varied apart."""
    generator = np.random.default_rng(0)
    drawn = []
    for k in range(ENVELOPE_SAMPLES):
        base = capacities[k % len(capacities)]
        size = 10.0 ** generator.uniform(-1.0, 3.0)
        n, e, g, m = np.exp(generator.uniform(-1.5, 1.5, 4)) * [size, size, size, 1.0]
        largest = max(1, int(base.max_graph_nodes * m))
        factors = np.exp(generator.uniform(-1.5, 1.5, len(base.extra))) * size
        more = [
            (name, 1 + int(rows * factor))
            for (name, rows), factor in zip(base.extra, factors, strict=True)
        ]
        drawn.append(
            Capacity.distinct(
                largest + 1 + int(base.nodes * n),
                int(base.edges * e),
                2 + int(base.graphs * g),
                largest,
                more,
            )
        )
    return drawn
