"""``dropout_sum`` in Triton: one launch per direction, nothing stored, no atomics.

Whether a value is kept is decided by Philox of seed, site and position (Salmon et al. 2011). The
seed is read from device memory, so a recorded graph that draws it again drops different values at
every replay.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, read, wide, write

BLOCK = 1024


@triton.jit
def dropout_sum_fill(
    x,
    gate,
    residual,
    seed,
    out,
    site,
    p: tl.constexpr,
    rows,
    width: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: a block of positions, each dropped or scaled by ``1 / (1 - p)``, then added to
    the residual."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # A multiple of the constant width, so loads vectorise.
    here = at < tl.full([], width, tl.int64) * rows
    place = at.to(tl.uint32)
    none = place * 0
    drawn, _, _, _ = tl.philox(tl.load(seed), place, none + site, none, none)
    stays = tl.uint_to_uniform_float(drawn) >= p
    if gate is not None:
        stays = stays & (read(gate + at, here, WIDE) > 0)
    value = read(x + at, here, WIDE) / (1 - p)
    value = tl.where(stays, value, 0)
    if residual is not None:
        value += read(residual + at, here, WIDE)
    write(out + at, value, here)


def _options(x: Tensor) -> dict[str, Any]:
    rows, width = x.shape
    grid = (triton.cdiv(max(x.numel(), 1), BLOCK),)
    return {"grid": grid, "rows": rows, "width": width, "WIDE": wide(x.dtype), "BLOCK": BLOCK}


fill: Launch = Launch(dropout_sum_fill, options=_options)
