"""``dropout_sum`` on the CPU.

Whether a value is kept is decided by a hash of seed, site and position (splitmix64: Steele, Lea and
Flood 2014), so backward recomputes the mask and nothing is stored.
"""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix
from staticgraph.packing.random import STEP, mix

_TOP = np.uint64(40)
# 24 bits of the hash decide, as many as a float32 between 0 and 1 has.
_STEPS = 1 << 24


@CpuLoop
def fill(
    x: Matrix, gate: Matrix, residual: Matrix, seed: Indices, site: int, p: float, out: Matrix
) -> None:
    """Writes ``residual + x / (1 - p)`` where a value is kept, the residual elsewhere.

    With a ``gate``, a value is kept only where the gate is above zero. A missing operand has no
    rows.
    """
    width, zero = x.shape[1], x.dtype.type(0)
    scale, least = x.dtype.type(1 / (1 - p)), np.uint64(p * _STEPS)
    key = mix(np.uint64(seed[0]) + mix(np.uint64(site) * STEP))
    gated, added = len(gate) > 0, len(residual) > 0
    for r in range(len(x)):
        for f in range(width):
            place = np.uint64(r * width + f)
            stays = (mix(key + place * STEP) >> _TOP) >= least
            if gated:
                stays = stays and not gate[r, f] <= zero
            value = scale * x[r, f] if stays else zero
            out[r, f] = value + residual[r, f] if added else value
