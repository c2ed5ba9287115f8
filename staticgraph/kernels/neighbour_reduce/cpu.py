"""``neighbour_reduce`` on one core: a loop over destinations per direction, one message at a time.

The rows of a message stay in the L1 cache, and nothing has size ``[E, F]``. Each step of a message
is a separate loop over its columns, over few enough arrays for LLVM to prove that they do not
overlap and vectorise it. The variance is accumulated around the first message of a node, which
keeps the digits that a mean of squares would lose. Backward recomputes the messages and scatters as
it goes: on one core the order of additions is fixed. Both functions are long because moving more of
them to inlined functions cost time (one of 2 shared cores, 1,800 nodes, 3,700 edges, 2026-11-23): a
tenth for the per-node work if only the maximum is requested, a quarter and more for the per-edge
work.

Operands that were not given are empty; one row of zeros is then read for every edge. ``code`` is
empty if edge ``e`` reads row ``e``. ``kinds`` are indices into
:data:`staticgraph.kernels.neighbour_reduce.reference.REDUCTIONS`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import inlined, kernel_part
from staticgraph.kernels.cpu_loop import Block, CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.exponential import exp
from staticgraph.store.columns import Array

SUM, MEAN, MIN, MAX, VAR, STD = range(6)
RELU, LEAKY_RELU, SILU, SIGMOID = 1, 2, 3, 4
LEAST_VARIANCE = 1e-5


@inlined
def _sum(source: Array, j: int, target: Array, i: int, edge: Array, r: int, value: Array) -> None:
    """Computes a message before its activation."""
    for f in range(len(value)):
        value[f] = source[j, f] + target[i, f] + edge[r, f]


@kernel_part
def _sigmoid(value: Array) -> None:
    """Applies the logistic function in place. It is called, not inlined at every use below, where
    LLVM no longer inlined the exponential: backward then took 4.1 ms in place of 0.6 (1,757 nodes,
    3,618 edges, 64 columns, one core of an AMD EPYC with AVX2, 2026-11-28)."""
    one = value.dtype.type(1)
    for f in range(len(value)):
        value[f] = one / (one + exp(-value[f]))


@inlined
def _activate(value: Array, logistic: Array, activation: int, slope: Any, zero: Any) -> None:
    """Applies the activation in place, in a loop over a single array.

    When the activation was selected around a loop over all operands, that loop was not vectorised,
    and a layer took three times as long.
    """
    width = len(value)
    if activation == RELU:
        for f in range(width):
            given = value[f]
            value[f] = zero if given <= zero else given
    elif activation == LEAKY_RELU:
        for f in range(width):
            given = value[f]
            value[f] = given if given > zero else slope * given
    elif activation == SILU:
        for f in range(width):
            logistic[f] = value[f]
        _sigmoid(logistic)
        for f in range(width):
            value[f] *= logistic[f]
    elif activation == SIGMOID:
        _sigmoid(value)


@inlined
def _rise(
    value: Array, logistic: Array, activation: int, slope: Any, zero: Any, one: Any, given: Array
) -> None:
    """Multiplies a gradient by the derivative of the activation at ``value``, in place."""
    width = len(given)
    if activation == RELU:
        for f in range(width):
            given[f] = zero if value[f] <= zero else given[f]
    elif activation == LEAKY_RELU:
        for f in range(width):
            given[f] *= one if value[f] > zero else slope
    elif activation >= SILU:
        for f in range(width):
            logistic[f] = value[f]
        _sigmoid(logistic)
        if activation == SILU:
            for f in range(width):
                given[f] *= logistic[f] * (one + value[f] * (one - logistic[f]))
        else:
            for f in range(width):
                given[f] *= logistic[f] * (one - logistic[f])


@kernel_part
def _wanted(kinds: Array, kind: int) -> bool:
    found = False
    for k in kinds:
        found = found or k == kind
    return found


@CpuLoop
def forward(
    source: Matrix,
    target: Matrix,
    edge: Matrix,
    code: Indices,
    src: Indices,
    row_ptr: Pointers,
    activation: int,
    slope: float,
    kinds: Array,
    towers: int,
    out: Block,
) -> None:
    """Runs forward."""
    width = max(source.shape[1], target.shape[1], edge.shape[1])
    nodes, part = len(row_ptr) - 1, width // towers
    out = out.reshape(towers, nodes, len(kinds), part)
    sourced, targeted, edged = len(source) > 0, len(target) > 0, len(edge) > 0
    nothing = np.zeros((1, width), out.dtype)
    source, target = source if sourced else nothing, target if targeted else nothing
    edge = edge if edged else nothing
    kind = out.dtype.type
    zero, one, tilt, least_variance = kind(0), kind(1), kind(slope), kind(LEAST_VARIANCE)
    spread = _wanted(kinds, VAR) or _wanted(kinds, STD)
    lowest, highest = _wanted(kinds, MIN), _wanted(kinds, MAX)
    message, first = np.empty(width, out.dtype), np.empty(width, out.dtype)
    logistic = np.empty(width, out.dtype)
    totals, leasts = np.empty((towers, part), out.dtype), np.empty((towers, part), out.dtype)
    mosts, aways = np.empty((towers, part), out.dtype), np.empty((towers, part), out.dtype)
    squares = np.empty((towers, part), out.dtype)
    total, least, most = totals.reshape(width), leasts.reshape(width), mosts.reshape(width)
    away, square = aways.reshape(width), squares.reshape(width)
    coded = len(code) > 0
    for i in range(nodes):
        begin, end = row_ptr[i], row_ptr[i + 1]
        own = i if targeted else 0
        for f in range(width):
            total[f] = zero
        if begin == end:
            for f in range(width):
                least[f] = zero
            for f in range(width):
                most[f] = zero
        if spread:
            for f in range(width):
                away[f] = zero
            for f in range(width):
                square[f] = zero
        for e in range(begin, end):
            j = src[e] if sourced else 0
            r = 0
            if edged:
                r = code[e] if coded else e
            _sum(source, j, target, own, edge, r, message)
            _activate(message, logistic, activation, tilt, zero)
            for f in range(width):
                total[f] += message[f]
            if e == begin:
                if lowest:
                    for f in range(width):
                        least[f] = message[f]
                if highest:
                    for f in range(width):
                        most[f] = message[f]
                if spread:
                    for f in range(width):
                        first[f] = message[f]
                continue
            if lowest:
                for f in range(width):
                    value, best = message[f], least[f]
                    least[f] = value if value < best or value != value else best
            if highest:
                for f in range(width):
                    value, best = message[f], most[f]
                    most[f] = value if value > best or value != value else best
            if spread:
                for f in range(width):
                    away[f] += message[f] - first[f]
                for f in range(width):
                    gap = message[f] - first[f]
                    square[f] += gap * gap
        share = one / kind(max(end - begin, 1))
        for k in range(len(kinds)):
            for t in range(towers):
                if kinds[k] == SUM:
                    for f in range(part):
                        out[t, i, k, f] = totals[t, f]
                elif kinds[k] == MEAN:
                    for f in range(part):
                        out[t, i, k, f] = share * totals[t, f]
                elif kinds[k] == MIN:
                    for f in range(part):
                        out[t, i, k, f] = leasts[t, f]
                elif kinds[k] == MAX:
                    for f in range(part):
                        out[t, i, k, f] = mosts[t, f]
                elif kinds[k] == VAR:
                    for f in range(part):
                        gap = share * aways[t, f]
                        out[t, i, k, f] = share * squares[t, f] - gap * gap
                else:
                    for f in range(part):
                        gap = share * aways[t, f]
                        value = share * squares[t, f] - gap * gap
                        root = np.sqrt(value)
                        out[t, i, k, f] = zero if value <= least_variance else root


@CpuLoop
def backward(
    grad: Block,
    out: Block,
    source: Matrix,
    target: Matrix,
    edge: Matrix,
    code: Indices,
    src: Indices,
    row_ptr: Pointers,
    activation: int,
    slope: float,
    kinds: Array,
    towers: int,
    dsource: Matrix,
    dtarget: Matrix,
    dedge: Matrix,
) -> None:
    """Runs backward."""
    width = max(source.shape[1], target.shape[1], edge.shape[1])
    nodes, part = len(row_ptr) - 1, width // towers
    shape = towers, nodes, len(kinds), part
    grad, out = grad.reshape(shape), out.reshape(shape)
    dsource[:] = 0
    if len(code) > 0 or len(src) == 0:
        dedge[:] = 0
    sourced, targeted, edged = len(source) > 0, len(target) > 0, len(edge) > 0
    nothing = np.zeros((1, width), out.dtype)
    source, target = source if sourced else nothing, target if targeted else nothing
    edge = edge if edged else nothing
    kind = out.dtype.type
    zero, one, two, tilt = kind(0), kind(1), kind(2), kind(slope)
    spread = _wanted(kinds, VAR) or _wanted(kinds, STD)
    lowest, highest = _wanted(kinds, MIN), _wanted(kinds, MAX)
    rows = np.empty((11, towers, part), out.dtype)
    bases, leans, lows, highs = rows[0], rows[1], rows[2], rows[3]
    leasts, mosts = rows[4], rows[5]
    base, lean, low = bases.reshape(width), leans.reshape(width), lows.reshape(width)
    high, least, most = highs.reshape(width), leasts.reshape(width), mosts.reshape(width)
    message, given, mean = rows[6].reshape(width), rows[7].reshape(width), rows[8].reshape(width)
    fewest, often = rows[9].reshape(width), rows[10].reshape(width)
    mine, logistic = np.empty(width, out.dtype), np.empty(width, out.dtype)
    coded = len(code) > 0
    for i in range(nodes):
        begin, end = row_ptr[i], row_ptr[i + 1]
        own = i if targeted else 0
        for f in range(width):
            mine[f] = zero
        share = one / kind(max(end - begin, 1))
        for f in range(width):
            base[f] = zero
        for f in range(width):
            lean[f] = zero
        for k in range(len(kinds)):
            for t in range(towers):
                if kinds[k] == SUM:
                    for f in range(part):
                        bases[t, f] += grad[t, i, k, f]
                elif kinds[k] == MEAN:
                    for f in range(part):
                        bases[t, f] += share * grad[t, i, k, f]
                elif kinds[k] == MIN:
                    for f in range(part):
                        lows[t, f] = grad[t, i, k, f]
                    for f in range(part):
                        leasts[t, f] = out[t, i, k, f]
                elif kinds[k] == MAX:
                    for f in range(part):
                        highs[t, f] = grad[t, i, k, f]
                    for f in range(part):
                        mosts[t, f] = out[t, i, k, f]
                elif kinds[k] == VAR:
                    for f in range(part):
                        leans[t, f] += two * share * grad[t, i, k, f]
                else:
                    for f in range(part):
                        root = out[t, i, k, f]
                        slant = share * grad[t, i, k, f] / root
                        leans[t, f] += slant if root > zero else zero
        if spread or lowest or highest:
            for f in range(width):
                mean[f] = zero
            if lowest:
                for f in range(width):
                    fewest[f] = one if least[f] == zero else zero
            if highest:
                for f in range(width):
                    often[f] = one if most[f] == zero else zero
            for e in range(begin, end):
                j = src[e] if sourced else 0
                r = 0
                if edged:
                    r = code[e] if coded else e
                _sum(source, j, target, own, edge, r, message)
                _activate(message, logistic, activation, tilt, zero)
                if spread:
                    for f in range(width):
                        mean[f] += message[f]
                if lowest:
                    for f in range(width):
                        fewest[f] += one if message[f] == least[f] else zero
                if highest:
                    for f in range(width):
                        often[f] += one if message[f] == most[f] else zero
            for f in range(width):
                mean[f] *= share
            if lowest:
                for f in range(width):
                    low[f] /= fewest[f]
            if highest:
                for f in range(width):
                    high[f] /= often[f]
        for e in range(begin, end):
            j = src[e] if sourced else 0
            r = 0
            if edged:
                r = code[e] if coded else e
            for f in range(width):
                given[f] = base[f]
            if spread or lowest or highest:
                _sum(source, j, target, own, edge, r, message)
                _activate(message, logistic, activation, tilt, zero)
            if spread:
                for f in range(width):
                    given[f] += lean[f] * (message[f] - mean[f])
            if lowest:
                for f in range(width):
                    given[f] += low[f] if message[f] == least[f] else zero
            if highest:
                for f in range(width):
                    given[f] += high[f] if message[f] == most[f] else zero
            if activation:
                _sum(source, j, target, own, edge, r, message)
                _rise(message, logistic, activation, tilt, zero, one, given)
            if sourced:
                for f in range(width):
                    dsource[j, f] += given[f]
            if targeted:
                for f in range(width):
                    mine[f] += given[f]
            if edged:
                if coded:
                    for f in range(width):
                        dedge[r, f] += given[f]
                else:
                    for f in range(width):
                        dedge[r, f] = given[f]
        if targeted:
            for f in range(width):
                dtarget[i, f] = mine[f]
