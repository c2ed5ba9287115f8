"""How large one capacity must be so that the exact batches of every epoch fit it.

Exact batches are random batches repaired by swaps (:mod:`staticgraph.packing.exact`), so the
capacity only needs to hold the mean batch plus a margin that gives the repair room to work. The
margin is found by trial on the data itself: it is the smallest value of a ladder at which every
batch of sixteen random epochs can be repaired. Where the training graphs are not named, the plan
must also hold the mean of a part of the data, so three standard errors of a random 80% are added. A
split that is not random, such as a scaffold split, can deviate further; pass its training graphs
(``indices``).

The capacity is fixed rather than chosen per epoch, because shapes are recorded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from staticgraph.packing.exact import exact_bounds, repair
from staticgraph.packing.packing_result import harmonic_mean
from staticgraph.packing.random import shuffle, stream_of
from staticgraph.packing.stream import pack_stream
from staticgraph.plans.cost import StepCost
from staticgraph.plans.limits import EXCESS
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray

# Margins over the mean, tried in this order.
MARGINS = (0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.5)
# Epochs drawn for each margin; all of them must fit.
TRIAL_EPOCHS = 16
# The most graphs drawn per trial: enough for a thousand batches of 512.
TRIAL_GRAPHS = 1 << 19
# The share of the data assumed to train when none is named, and the standard errors allowed for it.
TRAINED_SHARE = 0.8
STANDARD_ERRORS = 3.0
# Rows of a further component above the margin, as a share of the mean batch's nodes: a component
# that few graphs have (a rare type) varies by more than any margin, and its rows cost little.
SPARE_ROWS = 0.02
# A graph of more than this share of a mean batch is huge if it is also among the largest graphs,
# those that at most a share of the batches would contain (or the largest one by itself): the first
# of these shares at which the other graphs can be balanced.
HUGE = 0.25
RARE = (0.05, 0.5)
# Next to the largest graph there is room for the other graphs of a random batch, at this many
# standard deviations above their mean.
DEVIATIONS = 4.0
# A second bucket is one more compile and one more recording: it must save this share of the cost.
WORTH_A_BUCKET = 0.1
# The number of cuts considered; they are spread by the number of graphs above them.
CUTS = 60
# Graph slots of a stream's packs over their mean: on ogbg-molhiv at 32 graphs, 1.1 loses a tenth
# of a percent and 1.0 loses three percent.
SLOTS_OVER_MEAN = 1.25
STREAM_TRIALS = 4
# The most graphs packed per trial: a thousand packs of 128.
STREAM_GRAPHS = 1 << 17
# The smallest limits within this of the best efficiency are taken.
STREAM_TOLERANCE = 0.003


def exact_limits(sizes: IntArray, batch_size: int, margin: float) -> IntArray:
    """``[C]`` usable limits of each component, ``margin`` above the mean batch."""
    graphs = min(batch_size, len(sizes))
    mean = sizes.sum(axis=0) * (graphs / len(sizes))
    limits = mean * (1.0 + margin)
    if sizes.shape[1] > 2:
        spread = STANDARD_ERRORS * np.sqrt(graphs) * sizes[:, 2:].std(axis=0)
        limits[2:] += np.minimum(spread, SPARE_ROWS * mean[0])
    return np.ceil(limits).astype(np.int64)


def find_margin(
    sizes: IntArray, batch_size: int, *, whole: bool = True, seed: int = 0
) -> tuple[float, float]:
    """The margin over the mean at which batches of exactly ``batch_size`` graphs fit.

    Huge graphs that few batches contain are left out of the trial: no margin holds them, but a
    separate capacity may (:func:`whole_limits`).

    Args:
        sizes: ``[n, C]`` the training graphs, or all graphs where ``whole`` is false.
        batch_size: graphs per batch.
        whole: whether these are the training graphs; else a random part of them is allowed for.
        seed: of the trial.

    Returns:
        The margin, and the share of the batches that contain one of the graphs that were left out.
    """
    slack = 0.0
    for rare in RARE:
        ordinary = sizes[~_huge(sizes, batch_size, rare)]
        if not len(ordinary):
            return MARGINS[0] + (0.0 if whole else split_slack(sizes[:, :2])), rare
        slack = 0.0 if whole else split_slack(ordinary[:, :2])
        maxima = ordinary.max(axis=0)
        for margin in MARGINS:
            limits = np.maximum(exact_limits(ordinary, batch_size, margin), maxima)
            if always_fits(ordinary, batch_size, limits, seed):
                return margin + slack, rare
    return MARGINS[-1] + slack, RARE[-1]


def whole_limits(
    sizes: IntArray,
    batch_size: int,
    margin: float,
    maxima: IntArray,
    rare: float = RARE[0],
    seed: int = 0,
) -> IntArray:
    """``[C]`` usable limits that every exact batch fits, including those with the largest graph.

    Args:
        sizes: ``[n, C]`` the training graphs.
        batch_size: graphs per batch.
        margin: over the mean batch.
        maxima: ``[C]`` the largest value of each component over all graphs the plan must hold.
        rare: the share of the batches that contain a huge graph.
        seed: of the trial.
    """
    huge = _huge(sizes, batch_size, rare)
    if huge.any():
        for wider in (margin, *(m for m in MARGINS if m > margin)):
            limits = np.maximum(exact_limits(sizes, batch_size, wider), maxima)
            if always_fits(sizes, batch_size, limits, seed):
                return limits
    needed = exact_limits(sizes, batch_size, margin)
    if not (needed < maxima).any():
        return needed
    others = sizes[~huge] if not huge.all() else sizes
    spread = DEVIATIONS * np.sqrt(batch_size - 1) * others.std(axis=0)
    beside = np.ceil((batch_size - 1) * others.mean(axis=0) + spread).astype(np.int64)
    fullest = np.partition(sizes, -batch_size, axis=0)[-batch_size:].sum(axis=0)
    return np.minimum(np.maximum(needed, maxima + beside), np.maximum(maxima, fullest))


def _huge(sizes: IntArray, batch_size: int, rare: float) -> NDArray[np.bool_]:
    """``[n]`` whether a graph is a large part of a mean batch, and few batches contain one."""
    first = sizes[:, :2]  # a few rows of a rare type make no graph huge
    share = (first / np.maximum(1, exact_limits(first, batch_size, 0.0))).max(axis=1)
    most = max(1, int(len(sizes) * (1.0 - (1.0 - rare) ** (1.0 / batch_size))))
    least = np.partition(share, len(share) - most)[len(share) - most]
    return np.asarray((share >= least) & (share > HUGE))


def rare_cut(
    sizes: IntArray,
    batch_size: int,
    typical: Callable[[IntArray], Capacity],
    whole: Capacity,
    cost: StepCost,
) -> Capacity | None:
    """A smaller capacity for the batches without any of the few largest graphs, if it pays off.

    The batches stay random: those that contain a graph above the cut go to ``whole``, so a cut pays
    off only where such graphs are rare enough that most batches contain none.

    Args:
        sizes: ``[n, C]`` the training graphs.
        batch_size: graphs per batch.
        typical: maps the sizes ``[., C]`` of some graphs to the capacity that their mean batch
            needs, regardless of the largest graph. It is called with the graphs below the cut: five
            giants among 5,000 graphs may have more nodes than all the others.
        whole: the capacity that every batch fits.
        cost: the cost of a step.

    Returns:
        The capacity to put before ``whole``, or None where no cut saves :data:`WORTH_A_BUCKET`.
    """
    nodes = np.sort(sizes[:, 0])
    best, least = None, (1.0 - WORTH_A_BUCKET) * cost.of(whole)
    above = np.unique(np.geomspace(1, len(nodes), CUTS).astype(np.int64))
    for cut in np.unique(nodes[len(nodes) - above]):
        below = sizes[sizes[:, 0] <= cut]
        main = typical(below)
        none = (len(below) / len(sizes)) ** batch_size
        capacity = Capacity.distinct(
            max(main.nodes, int(cut) + main.node_reserve),
            max(main.edges, int(below[:, 1].max()) + main.edge_reserve),
            main.graphs,
            max(1, int(cut)),
            tuple(
                (name, max(rows, int(most) + 1))
                for (name, rows), most in zip(main.extra, below[:, 2:].max(axis=0), strict=True)
            ),
            main.edge_reserve,
            main.node_reserve,
        )
        expected = none * cost.of(capacity) + (1.0 - none) * cost.of(whole)
        if expected < least and capacity < whole:
            best, least = capacity, expected
    return best


def stream_limits(sizes: IntArray, graphs: int, seed: int = 0) -> tuple[IntArray, float]:
    """Finds by trial the limits for packing a stream into packs of about ``graphs`` graphs.

    Args:
        sizes: ``[n, C]`` the graphs.
        graphs: how many graphs a pack should hold on average.
        seed: of the random orders tried.

    Returns:
        ``[C]`` usable limits, and the harmonic mean of the efficiencies that the trials reached.
    """
    totals, maxima = sizes.sum(axis=0), sizes.max(axis=0)
    batches = max(1, round(len(sizes) / graphs))
    slots = graph_slots(graphs)
    orders, packed = [], np.zeros(len(totals))
    for trial in range(STREAM_TRIALS):
        order = np.arange(len(sizes), dtype=np.int64)
        shuffle(order, stream_of(seed, trial))
        orders.append(order[:STREAM_GRAPHS])
        packed += sizes[orders[-1]].sum(axis=0) / STREAM_TRIALS
    tried: list[tuple[IntArray, float]] = []
    for excess in EXCESS:
        limits = np.maximum(np.ceil(totals / batches * (1.0 + excess)).astype(np.int64), maxima)
        packs = [
            int(pack_stream(sizes, limits, max_graphs=slots, order=order).max()) + 1
            for order in orders
        ]
        reached = harmonic_mean(packed / np.maximum(1, np.mean(packs) * limits))
        tried.append((limits, reached))
    enough = max(reached for _, reached in tried) - STREAM_TOLERANCE
    return next((limits, reached) for limits, reached in tried if reached >= enough)


def graph_slots(graphs: int) -> int:
    """The most graphs that a pack of a stream may hold, for an average of ``graphs``."""
    return math.ceil(SLOTS_OVER_MEAN * graphs)


def split_slack(sizes: IntArray) -> float:
    """Slack for the mean of a random part of the graphs, as a share of the mean.

    It is :data:`STANDARD_ERRORS` standard errors.
    """
    mean = np.maximum(sizes.mean(axis=0), 1e-9)
    error = sizes.std(axis=0) * np.sqrt((1 - TRAINED_SHARE) / (TRAINED_SHARE * len(sizes)))
    return float((STANDARD_ERRORS * error / mean).max())


def always_fits(sizes: IntArray, batch_size: int, limits: IntArray, seed: int = 0) -> bool:
    """Whether every batch of the trial epochs can be repaired to fit the limits."""
    return not any(
        overflow_rate(sizes, batch_size, limits, 1, seed + trial) for trial in range(TRIAL_EPOCHS)
    )


def overflow_rate(
    sizes: IntArray, batch_size: int, limits: IntArray, epochs: int, seed: int = 0
) -> float:
    """The share of exact batches over ``epochs`` epochs that no swap brings within the limits."""
    over = batches = 0
    for epoch in range(epochs):
        key = stream_of(seed, epoch)
        order = np.arange(len(sizes), dtype=np.int64)
        shuffle(order, key)
        order = order[:TRIAL_GRAPHS]
        bounds = exact_bounds(len(order), batch_size)
        batches += len(bounds) - 1
        over += repair(order, sizes, bounds, limits.tolist(), key)[2]
    return over / max(1, batches)
