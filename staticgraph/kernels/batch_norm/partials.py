"""Precomputed statistics for a norm: how rows are cut into tiles, and how tiles are merged.

A kernel that writes the rows of a norm's input can compute their statistics while it holds them:
per tile of rows, the mean and the sum of squared deviations of the real rows, of the values as
written. A norm merges the tiles as it merges its own chunks (Chan, Golub and LeVeque 1983), in the
same order every time.

Invariant: there are at most :data:`MAX_PARTIALS` tiles up to :data:`MAX_ROWS` rows, as many as the
norm's second launch merges anyway, so precomputed statistics add no work to it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_PARTIALS = 64
# Rows per tile: the smallest size that stays within MAX_PARTIALS tiles is used.
TILES = (32, 64, 128)
MAX_ROWS = MAX_PARTIALS * TILES[-1]


def rows_a_partial(rows: int) -> int:
    """Returns the rows per tile for ``rows`` rows in all."""
    return next((tile for tile in TILES if rows <= MAX_PARTIALS * tile), TILES[-1])


def partials_of(rows: int) -> int:
    """Returns the number of tiles for ``rows`` rows."""
    return -(-max(rows, 1) // rows_a_partial(rows))


def partials_reference(values: Tensor, count: Tensor) -> Tensor:
    """Computes the statistics of each tile of ``values`` ``[R, F]``.

    Returns:
        ``[tiles, 2, F]`` float32 (float64 for float64), mean and sum of squared deviations of the
        first ``count`` rows; zeros for a tile without real rows.
    """
    rows, width = values.shape
    tile, tiles = rows_a_partial(rows), partials_of(rows)
    wide = torch.promote_types(values.dtype, torch.float32)
    real = (torch.arange(tiles * tile, device=values.device) < count).view(tiles, tile, 1)
    cut = F.pad(values.to(wide), (0, 0, 0, tiles * tile - rows)).view(tiles, tile, width)
    mean = torch.where(real, cut, 0).sum(1) / real.sum(1).clamp(min=1)
    away = torch.where(real, cut - mean.unsqueeze(1), 0)
    return torch.stack([mean, away.square().sum(1)], 1)
