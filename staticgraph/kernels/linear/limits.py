"""Decides from shapes and dtypes alone which linear layers use this library's kernels on CUDA."""

from __future__ import annotations

import torch

# Rows that one program sums for a tile of the weight's gradient, and more where there would be too
# many chunks, whose partial sums the tile's last program adds.
ROWS_A_CHUNK = 128
MAX_CHUNKS = 32
# Multiplications in one product. At 74 million (823 rows, 300 to 300 columns) backward takes 0.6 of
# torch's time on an H200, and at 592 million (6,575 rows) 1.1 in float32; between them is a guess.
MAX_WORK = 1 << 28
# By count, not measured.
MAX_ROWS = 16384
MAX_WIDTH = 1024
# One per tile of a weight's gradient, of which no weight has more.
TICKETS = 256
FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


def fits(rows: int, width: int, columns: int, *dtypes: torch.dtype) -> bool:
    """Returns whether ``[rows, width] -> [rows, columns]`` in these dtypes is small enough."""
    small = rows <= MAX_ROWS and max(width, columns) <= MAX_WIDTH
    return small and rows * width * columns <= MAX_WORK and FLOATS.issuperset(dtypes)


def chunks_of(rows: int) -> tuple[int, int]:
    """Returns the number of chunks for sums over rows, and the rows per chunk."""
    rows = max(rows, 1)
    a_chunk = max(ROWS_A_CHUNK, -(-rows // (64 * MAX_CHUNKS)) * 64)
    return -(-rows // a_chunk), a_chunk
