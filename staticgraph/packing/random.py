"""A small random number generator for compiled loops, identical on every machine and version.

The batches of an epoch are guaranteed: the same seed gives the same batches, after a resume, on
another rank, and with another version of NumPy or numba. So the loops do not use a library's
generator but SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators", figure 17): a counter and a mixing function. Not for cryptography.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import inlined, loop
from staticgraph.sizes.whole_numbers import IntArray

# The odd constant nearest 2**64 divided by the golden ratio; the step of SplitMix64's counter.
STEP = np.uint64(0x9E3779B97F4A7C15)

_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_32 = (np.uint64(k) for k in (30, 27, 31, 32))
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@inlined
def mix(counter: np.uint64) -> np.uint64:
    """SplitMix64's output for one value of its counter."""
    z = (counter ^ (counter >> _SHIFT_30)) * _MIX_1
    z = (z ^ (z >> _SHIFT_27)) * _MIX_2
    return z ^ (z >> _SHIFT_31)


@inlined
def below(counter: np.uint64, bound: int) -> int:
    """A number in ``0 .. bound - 1``; ``bound`` is below ``2**32``, the bias below ``2**-32``."""
    return np.int64(((mix(counter) >> _SHIFT_32) * np.uint64(bound)) >> _SHIFT_32)  # type: ignore[return-value]


@loop
def shuffle(items: IntArray, seed: np.uint64) -> None:
    """Puts ``items`` ``[n]`` into a random order in place (Fisher and Yates)."""
    counter = seed
    for i in range(len(items) - 1, 0, -1):
        counter += STEP
        j = below(counter, i + 1)
        items[i], items[j] = items[j], items[i]


def stream_of(*keys: int) -> np.uint64:
    """The start of an independent stream for a tuple of whole numbers, such as (seed, epoch)."""
    state = 0
    for key in keys:
        state = int(_mix_int(state ^ (int(key) & 0xFFFFFFFFFFFFFFFF)))
    return np.uint64(state)


def _mix_int(value: int) -> int:
    """:func:`mix` after one step of the counter, on Python integers, which do not overflow."""
    mask = 0xFFFFFFFFFFFFFFFF
    z = (value + int(STEP)) & mask
    z = ((z ^ (z >> 30)) * int(_MIX_1)) & mask
    z = ((z ^ (z >> 27)) * int(_MIX_2)) & mask
    return z ^ (z >> 31)
