"""Helpers shared by the programs of ``collate``: finding the graph of a row, and copying its
fields."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def owner_of(row, starts, all_graphs, STEPS: tl.constexpr):
    """Returns the last graph that starts at or before a row; empty graphs are skipped."""
    low = row * 0
    high = low + all_graphs
    for _ in range(STEPS):
        middle = (low + high) // 2
        before = tl.load(starts + middle) <= row
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def copy_field(
    row,
    alone,
    to,
    here,
    there,
    inside,
    source,
    target,
    line,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDING: tl.constexpr,
):
    """Copies rows of one column, widened to the output dtype.

    ``row`` is the row to copy, of a padding row as well, and ``alone`` is the same one for all of
    these. ``PADDING``: 0 if they get zeros instead, 2 if they get ``alone``, with ``line`` added
    to the first column; ``there``: whether the batch has any real row.
    """
    if PADDING == 2:
        row = tl.where(here, row, alone)
    copied = here if PADDING == 0 else there
    for start in range(0, WIDTH, BLOCK):
        f = start + tl.arange(0, BLOCK)
        wanted = f < WIDTH
        at = source + row[:, None] * WIDTH + f[None, :]
        value = tl.load(at, mask=copied[:, None] & wanted[None, :], other=0)
        value = value.to(target.dtype.element_ty)
        if PADDING == 2:
            first = (f == 0)[None, :] & (here == 0)[:, None]
            value = tl.where(first, value + line[:, None].to(target.dtype.element_ty), value)
        at = target + to[:, None] * WIDTH + f[None, :]
        tl.store(at, value, mask=inside[:, None] & wanted[None, :])


@triton.jit
def copy_fields(row, alone, to, here, there, inside, sources, targets, line, FIELDS: tl.constexpr):
    """Copies the rows of all fields; ``FIELDS`` has three numbers per field."""
    for n in tl.static_range(len(FIELDS) // 3):
        copy_field(
            row,
            alone,
            to,
            here,
            there,
            inside,
            sources[n],
            targets[n],
            line,
            FIELDS[3 * n],
            FIELDS[3 * n + 1],
            FIELDS[3 * n + 2],
        )
