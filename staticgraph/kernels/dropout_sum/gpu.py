"""``dropout_sum`` in Triton: one launch per direction, nothing stored, no atomics.

Whether a value is kept is decided by Philox of seed, site and position (Salmon et al. 2011). The
seed is read from device memory, so a recorded graph that draws it again drops different values at
every replay.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import read, wide, write

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
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
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
    if GATED:
        stays = stays & (read(gate + at, here, WIDE) > 0)
    value = read(x + at, here, WIDE) / (1 - p)
    value = tl.where(stays, value, 0)
    if ADDED:
        value += read(residual + at, here, WIDE)
    write(out + at, value, here)


def fill(
    x: Tensor, gate: Tensor | None, residual: Tensor | None, seed: Tensor, site: int, p: float
) -> Tensor:
    """Runs the operator in one launch."""
    out = torch.empty_like(x)
    dropout_sum_fill[(triton.cdiv(max(x.numel(), 1), BLOCK),)](
        x,
        x if gate is None else gate,
        x if residual is None else residual,
        seed,
        out,
        site,
        p,
        x.size(0),
        x.size(1),
        GATED=gate is not None,
        ADDED=residual is not None,
        WIDE=wide(x.dtype),
        BLOCK=BLOCK,
    )
    return out
