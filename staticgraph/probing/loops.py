"""Splitting a step into the operations that run once and those that run for each block of a loop.

A step over several blocks has more operations than one over fewer, but the same ones for each
block, so they match iteration by iteration where whole steps do not match. The live memory in an
iteration is again an exact sum of counts: :mod:`staticgraph.memory.series`.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgraph.memory.least_squares import FloatArray
from staticgraph.memory.series import Moments
from staticgraph.probing.aligned import aligned
from staticgraph.probing.reading import Reading


def parts_of(readings: Sequence[Reading]) -> list[Moments] | None:
    """The moments of each reading, with forward and backward loops separated.

    All readings have equally many of each. The result is None where no loop was seen, or where the
    steps cannot be matched.
    """
    taken = [_apart(reading) for reading in readings]
    if any(found is None for found in taken):
        return None
    steps = [found for found in taken if found is not None]
    kinds = [tuple(backward for _, backward in loops) for _, loops in steps]
    if not kinds or not kinds[0] or len(set(kinds)) > 1:
        return None
    outside = _matched([once for once, _ in steps])
    if outside is None:
        return None
    loops: list[list[tuple[FloatArray, ...]]] = [[] for _ in steps]
    for number in range(len(kinds[0])):
        blocks = [list(found.values())[number] for _, found in steps]
        iterations = _matched([one for found in blocks for _, one in sorted(found.items())])
        if iterations is None:
            return None
        rest = iter(iterations)
        for mine, found in zip(loops, blocks, strict=True):
            mine.append(tuple(next(rest) for _ in found))
    return [Moments(once, tuple(found)) for once, found in zip(outside, loops, strict=True)]


_Loops = dict[tuple[int, bool], dict[int, Reading]]


def _apart(reading: Reading) -> tuple[Reading, _Loops] | None:
    """Splits a reading into what runs once and, per loop, each iteration by block."""
    moments, operations, turns = reading.moments, reading.operations, reading.turns
    if moments is None or operations is None or len(turns) != len(moments):
        return None
    places: dict[tuple[int, bool], dict[int, list[int]]] = {}
    outside = []
    for place, turn in enumerate(turns):
        if turn is None:
            outside.append(place)
        else:
            loop = places.setdefault((turn.loop, turn.backward), {})
            loop.setdefault(turn.block, []).append(place)

    def part(chosen: list[int]) -> Reading:
        """The part of the reading at these places."""
        return Reading(0, moments=moments[chosen], operations=operations[chosen])

    loops = {key: {b: part(at) for b, at in found.items()} for key, found in places.items()}
    return part(outside), loops


def _matched(parts: Sequence[Reading]) -> list[FloatArray] | None:
    found = aligned(parts)
    matched = [moments for moments in found if moments is not None]
    return matched if len(matched) == len(parts) else None
