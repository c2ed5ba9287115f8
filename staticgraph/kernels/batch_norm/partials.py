"""Statistics that a norm is given: how rows are cut into tiles, and how tiles are joined.

What writes the rows of a norm can take their statistics while it holds them: of each tile of rows
the mean and the sum of squared deviations, of real rows only, of the values as they are written. A
norm joins the tiles as it joins its own chunks (Chan, Golub and LeVeque 1983), in the same order
every time.

Invariant: at most :data:`MAX_PARTIALS` tiles up to :data:`MAX_ROWS` rows, which is what the norm's
second launch joins without them; so it does no more with them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_PARTIALS = 64
# Rows of a tile: the lowest that needs no more tiles.
TILES = (32, 64, 128)
MAX_ROWS = MAX_PARTIALS * TILES[-1]


def rows_a_partial(rows: int) -> int:
    """Rows of a tile of so many rows in all."""
    return next((tile for tile in TILES if rows <= MAX_PARTIALS * tile), TILES[-1])


def partials_of(rows: int) -> int:
    """How many tiles."""
    return -(-max(rows, 1) // rows_a_partial(rows))


def partials_reference(values: Tensor, count: Tensor) -> Tensor:
    """The statistics of each tile of ``values`` ``[R, F]``: ``[tiles, 2, F]``, mean and sum of
    squared deviations of the first ``count`` rows, float32 (float64 for float64); zeros of a tile
    without a real row."""
    rows, width = values.shape
    tile, tiles = rows_a_partial(rows), partials_of(rows)
    wide = torch.promote_types(values.dtype, torch.float32)
    real = (torch.arange(tiles * tile, device=values.device) < count).view(tiles, tile, 1)
    cut = F.pad(values.to(wide), (0, 0, 0, tiles * tile - rows)).view(tiles, tile, width)
    mean = torch.where(real, cut, 0).sum(1) / real.sum(1).clamp(min=1)
    away = torch.where(real, cut - mean.unsqueeze(1), 0)
    return torch.stack([mean, away.square().sum(1)], 1)


def joined(partial: Tensor, count: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance ``[F]`` of the first ``count`` of ``rows`` rows, by tiles."""
    tile = rows_a_partial(rows)
    first = torch.arange(len(partial), device=partial.device) * tile
    found = (count - first).clamp(0, tile).to(partial.dtype).unsqueeze(1)
    total = count.clamp(min=1).to(partial.dtype)
    mean = (found * partial[:, 0]).sum(0) / total
    step = torch.where(found > 0, partial[:, 0] - mean, 0)
    return mean, (partial[:, 1] + found * step.square()).sum(0) / total
