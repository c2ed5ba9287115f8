"""``dropout_sum`` on the CPU. A value's fate is a hash of seed, site and place (splitmix64: Steele,
Lea and Flood 2014), so backward finds it again and nothing is stored."""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.packing.random import STEP, mix
from staticgraph.store.columns import Array

_TOP = np.uint64(40)
# Of the hash 24 bits decide, as many as a float32 between 0 and 1 has.
_STEPS = 1 << 24


@kernel
def fill(
    x: Array,
    gate: Array,
    residual: Array,
    seed: int,
    site: int,
    p: float,
    out: Array,
) -> None:
    """``residual + x / (1 - p)`` where a value stays, the residual elsewhere. With a ``gate`` only
    where it is above zero; an operand that is not there has no rows."""
    width, zero = x.shape[1], x.dtype.type(0)
    scale, least = x.dtype.type(1 / (1 - p)), np.uint64(p * _STEPS)
    key = mix(np.uint64(seed) + mix(np.uint64(site) * STEP))
    gated, added = len(gate) > 0, len(residual) > 0
    for r in range(len(x)):
        for f in range(width):
            place = np.uint64(r * width + f)
            stays = (mix(key + place * STEP) >> _TOP) >= least
            if gated:
                stays = stays and not gate[r, f] <= zero
            value = scale * x[r, f] if stays else zero
            out[r, f] = value + residual[r, f] if added else value
