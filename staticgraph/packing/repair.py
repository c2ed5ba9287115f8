"""Removing packs one after another: their graphs go to other packs, repaired by exchanges.

The problem: with ten graphs per pack the best packing leaves a thousandth unused or nothing at all,
and filling pack by pack, or rounding a linear program, leaves graphs that fit nowhere. Swaps of one
graph for one (:mod:`staticgraph.packing.exact`) end where no swap lowers the excess. The idea:
remove a pack, give its graphs to packs that then hold too much, and exchange up to two graphs for
up to two between such a pack and another one, choosing the best of all pairs, even where that does
not lower the excess: the excess then wanders until it meets a pack with exactly that room (a walk
on plateaus, as in WalkSAT: Selman, Kautz and Cohen 1994, "Noise strategies for improving local
search").

The invariant: the returned packing keeps the limits and holds every graph once. Steps are counted
and random numbers have a seed, so the result depends only on the time limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from staticgraph.jit import inlined, loop, part
from staticgraph.packing.exact import excess_of
from staticgraph.packing.packing_result import Packing, with_graphs
from staticgraph.packing.random import STEP, below, mix, stream_of
from staticgraph.packing.swap import as_packing
from staticgraph.sizes.whole_numbers import IntArray

# Above this many graphs it takes longer than linear programs.
MOST_GRAPHS = 100_000
# Steps for removing one pack, per remaining pack.
STEPS_A_PACK = 6000
# The most steps in total, about ten seconds: for 29,000 packs of three or four molecules like
# ZINC's each pack that could be removed took at most 20 steps per pack; the last took a minute in
# vain.
MOST_STEPS = 20_000_000
# Pairs of graphs between two checks of the clock, about 0.05 s.
PAIRS_AT_ONCE = 3_000_000
# The percentage of the packs above the bound that is removed at once.
TAKEN = 30
# In every second step the partner is the emptiest of this many other packs.
PROBES = 6
# How readily a worsening exchange is made, in smallest units of a component.
HEAT = 0.25


def fewer_by_repair(
    best: Packing,
    least: int,
    until: float = math.inf,
    *,
    pairs: float = math.inf,
    at_once: float = math.inf,
    each: float = math.inf,
    shown: Callable[[int], object] | None = None,
) -> Packing:
    """Searches by exchanges for a packing with fewer packs than ``best``, down to ``least``.

    Args:
        best: a packing.
        least: a bound; the search ends when it is reached.
        until: when to stop, on the clock of ``time.perf_counter``.
        pairs: the most pairs of graphs to look at in total, for a result independent of time.
        at_once: the most packs removed at a time.
        each: the most pairs looked at per attempt.
        shown: called with the number of packs at each success.
    """
    if best.histogram.num_graphs > MOST_GRAPHS:
        return best
    taken = int(max(1, min((best.num_packs - least) * TAKEN // 100, at_once)))
    while best.num_packs > least and time.perf_counter() < until and pairs > 0:
        packing, looked_at = _repaired(best, taken, until, min(pairs, each))
        pairs -= looked_at
        if packing is not None:
            best = packing
            taken = min(taken, max(1, (best.num_packs - least) * TAKEN // 100))
            if shown is not None:
                shown(best.num_packs)
        elif taken > 1:
            taken = max(1, taken // 3)
        else:
            break
    return best


def _repaired(
    best: Packing, taken: int, until: float, pairs: float
) -> tuple[Packing | None, float]:
    """A packing with ``taken`` packs fewer, or None where time or steps ran out; also the
    approximate number of pairs looked at."""
    histogram, packs = best.histogram, best.num_packs - taken
    if packs < 1:
        return None, 0
    sizes, limits = with_graphs(histogram, best.limits, best.max_graphs)
    members, held = _places(best)
    load = np.zeros((len(held), sizes.shape[1]), dtype=np.int64)
    for column in range(members.shape[1]):
        there = held > column
        load[there] += sizes[members[there, column]]
    # The emptiest packs are removed: they have the fewest graphs to place.
    order = np.argsort(-(load / np.maximum(1, limits)).sum(axis=1), kind="stable")
    members, held, load = members[order], held[order], load[order]
    homeless = np.concatenate([members[b, : held[b]] for b in range(packs, len(held))])
    members, held, load = members[:packs].copy(), held[:packs].copy(), load[:packs].copy()
    units = np.maximum(1, np.gcd.reduce(sizes, axis=0)) / np.maximum(1, limits)
    weights, heat = 1.0 / np.maximum(1, limits), HEAT * float(units.min())
    _settle(homeless, members, held, load, sizes, limits, weights)
    key = stream_of(packs, taken)
    a_step = (1 + histogram.num_graphs / packs) ** 2
    most = min(STEPS_A_PACK * packs, MOST_STEPS)
    left = min(most, max(1, math.ceil(min(pairs, 1e15) / a_step)))
    looked_at = 0.0
    while left > 0:
        steps = min(left, max(1, int(PAIRS_AT_ONCE / a_step)))
        over, exchanges, after = _exchange(
            members, held, load, sizes, limits, weights, heat, steps, key
        )
        key = np.uint64(after)
        left, looked_at = left - steps, looked_at + exchanges * a_step
        if not over:
            nonempty = np.flatnonzero(held)
            flat = np.concatenate([members[b, : held[b]] for b in nonempty])
            bounds = np.concatenate([[0], np.cumsum(held[nonempty])]).astype(np.int64)
            packing = as_packing(histogram, best.limits, best.max_graphs, flat, bounds, "exchanges")
            return packing, looked_at
        if time.perf_counter() > until:
            break
    return None, looked_at


def _places(packing: Packing) -> tuple[IntArray, IntArray]:
    """``[packs, W]`` the types of each pack's graphs, with room to add; ``[packs]`` how many."""
    graphs = packing.graphs
    mean = packing.histogram.num_graphs // packing.num_packs
    width = int(graphs.max()) + 2 * mean + 8
    patterns = np.zeros((len(graphs), width), dtype=np.int64)
    each = np.repeat(packing.types, packing.copies)
    owner = np.repeat(packing.pattern_of_entry, packing.copies)
    starts = np.concatenate([[0], np.cumsum(graphs)])
    patterns[owner, np.arange(len(each)) - starts[owner]] = each
    number = np.repeat(np.arange(len(graphs)), packing.counts)
    return patterns[number], graphs[number].astype(np.int64)


@loop
def _settle(homeless, members, held, load, sizes, limits, weights):
    """Places each homeless graph where it adds the least excess, among ties in the fullest pack."""
    for t in homeless:
        best, least, fullest = -1, np.inf, -1.0
        for b in range(len(held)):
            if held[b] >= members.shape[1]:
                continue
            excess, full = 0.0, 0.0
            for c in range(len(limits)):
                after = load[b, c] + sizes[t, c]
                full += after * weights[c]
                if after > limits[c]:
                    excess += (after - max(limits[c], load[b, c])) * weights[c]
            if excess < least or (excess == least and full > fullest):
                best, least, fullest = b, excess, full
        members[best, held[best]] = t
        held[best] += 1
        for c in range(len(limits)):  # written as a sum of rows, numba compiles five times longer
            load[best, c] += sizes[t, c]


@loop
def _exchange(members, held, load, sizes, limits, weights, heat, steps, counter):
    """Makes exchanges in place; returns the packs then over a limit, the steps and the counter."""
    packs, width, components = len(held), members.shape[1], len(limits)
    excess = np.empty(packs)
    over = np.empty(packs, np.int64)
    place = np.full(packs, -1, np.int64)
    count = 0
    for b in range(packs):
        excess[b] = excess_of(load, b, limits)
        if excess[b] > 0:
            over[count], place[b] = b, count
            count += 1
    change = np.zeros(components, np.int64)
    exchanges = 0
    while exchanges < steps and count > 0 and packs > 1:
        exchanges += 1
        counter += STEP
        a = over[below(counter, count)]
        b = _partner(a, load, weights, counter)
        counter += np.uint64(PROBES + 2) * STEP
        # In addition to the pair that is searched for, one random graph of each may be exchanged.
        x, y = -1, -1
        counter += STEP
        kind = below(counter, 4)
        if kind >= 2:
            counter += STEP
            x = below(counter, held[a]) if held[a] > 1 else -1
        if kind % 2 == 1 and held[b] > 0:
            counter += STEP
            y = below(counter, held[b])
        for c in range(components):
            change[c] = 0
            if x >= 0:
                change[c] -= sizes[members[a, x], c]
            if y >= 0:
                change[c] += sizes[members[b, y], c]
        before = excess[a] + excess[b]
        best, gives, takes, counter = _best_pair(
            members, held, load, sizes, limits, weights, a, b, x, y, change, counter
        )
        if gives == -2:
            continue
        if best > before + 1e-12:
            counter += STEP
            chance = float(mix(counter) >> np.uint64(11)) / 9007199254740992.0
            if chance >= np.exp((before - best) / heat):
                continue
        grown = held[a] - (x >= 0) - (gives >= 0) + (y >= 0) + (takes >= 0)
        shrunk = held[a] + held[b] - grown
        if grown > width or shrunk > width:
            continue
        _swap(members, held, a, b, x, gives, y, takes)
        for c in range(components):
            load[a, c], load[b, c] = 0, 0
        for pack in (a, b):
            for k in range(held[pack]):
                for c in range(components):
                    load[pack, c] += sizes[members[pack, k], c]
            excess[pack] = excess_of(load, pack, limits)
            if excess[pack] > 0 and place[pack] < 0:
                over[count], place[pack] = pack, count
                count += 1
            elif excess[pack] == 0 and place[pack] >= 0:
                count -= 1
                last = over[count]
                over[place[pack]], place[last] = last, place[pack]
                place[pack] = -1
    return count, exchanges, counter


@inlined
def _best_pair(members, held, load, sizes, limits, weights, a, b, x, y, change, counter):
    """Finds the exchange that leaves two packs least over their limits, ties broken at random.

    It is made together with that of ``x`` and ``y``, whose effect is ``change``. Returns the
    remaining excess, the places ``gives`` in pack ``a`` and ``takes`` in ``b`` (-1 for none; -2
    where no exchange is possible), and the counter.
    """
    best, gives, takes, ties = np.inf, -2, -2, 0
    for i in range(-1, held[a]):
        if i == x and i >= 0:
            continue
        for j in range(-1, held[b]):
            if j >= 0 and j == y:
                continue
            if i < 0 and j < 0 and x < 0 and y < 0:
                continue
            if i >= 0 and j >= 0 and members[a, i] == members[b, j]:
                continue
            after = 0.0
            for c in range(len(limits)):
                delta = change[c]
                if i >= 0:
                    delta -= sizes[members[a, i], c]
                if j >= 0:
                    delta += sizes[members[b, j], c]
                ours, theirs = load[a, c] + delta, load[b, c] - delta
                if ours > limits[c]:
                    after += (ours - limits[c]) * weights[c]
                if theirs > limits[c]:
                    after += (theirs - limits[c]) * weights[c]
                if after > best:
                    break
            if after < best:
                best, gives, takes, ties = after, i, j, 1
            elif after == best:
                ties += 1
                counter += STEP
                if below(counter, ties) == 0:
                    gives, takes = i, j
    return best, gives, takes, counter


@part
def _partner(a, load, weights, counter):
    """Another pack: a random one, or the emptiest of a few."""
    counter += STEP
    probes = PROBES if below(counter, 2) else 1
    best, least = -1, np.inf
    for _ in range(probes):
        counter += STEP
        b = below(counter, len(load) - 1)
        b += b >= a
        full = 0.0
        for c in range(len(weights)):
            full += load[b, c] * weights[c]
        if full < least:
            best, least = b, full
    return best


@part
def _swap(members, held, a, b, x, i, y, j):
    """Exchanges graphs at places ``x`` and ``i`` of pack ``a`` for ``y`` and ``j`` of ``b``."""
    ours, theirs = np.empty(2, np.int64), np.empty(2, np.int64)
    our_count, taken = 0, 0
    for k in (max(x, i), min(x, i)):  # the higher place first, so that the lower one stays valid
        if k >= 0:
            ours[our_count] = members[a, k]
            our_count += 1
            held[a] -= 1
            members[a, k] = members[a, held[a]]
    for k in (max(y, j), min(y, j)):
        if k >= 0:
            theirs[taken] = members[b, k]
            taken += 1
            held[b] -= 1
            members[b, k] = members[b, held[b]]
    for k in range(taken):
        members[a, held[a]] = theirs[k]
        held[a] += 1
    for k in range(our_count):
        members[b, held[b]] = ours[k]
        held[b] += 1
