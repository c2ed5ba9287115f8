"""Checks that all ranks still train the same model, including state that is not reduced.

The problem: gradients and the running statistics of norms are reduced over ranks, but a model may
have other state: a codebook that its forward updates, an embedding whose rows are renormalized, the
centres of a loss. Each rank then writes values from its own rows, the ranks train different models,
and no number looks wrong. The idea: after steps 1, 2, 4, 8, ... two sums of every tensor are
compared with rank 0's. All ranks count steps alike, so they compare at the same steps and none
waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from staticgraph.distributed.ranks import Ranks

# The tolerance, relative to a tensor's norm. State that is equal on all ranks is equal bit for bit;
# a moving average with a weight of a thousandth per batch differs by more after its first batch.
APART = 1e-6


@torch.no_grad()
def apart(tensors: Mapping[str, Tensor], ranks: Ranks) -> list[str]:
    """The names of the tensors whose values differ from rank 0's on any rank.

    The result is the same on every rank, and empty if the ranks give different numbers of tensors.

    Args:
        tensors: tensors by name, in the same order on every rank. Of one with values that are not
            finite only that is compared.
        ranks: the processes that compare.
    """
    mine = torch.stack([_sums(tensor) for tensor in tensors.values()] or [torch.zeros(2)])
    told = ranks.gathered(mine)
    if len({len(rows) for rows in told}) > 1:
        return []
    first = told[0]
    sizes = torch.tensor([max(1, tensor.numel()) for tensor in tensors.values()] or [1])
    bound = APART * torch.stack([sizes.sqrt() * first[:, 1], first[:, 1]], 1) + APART**2
    differs = torch.stack(
        [((rows - first).abs() > bound) | (rows.isfinite() != first.isfinite()) for rows in told]
    )
    differs = differs.any(0).any(1)
    return [name for name, found in zip(tensors, differs.tolist(), strict=False) if found]


def _sums(tensor: Tensor) -> Tensor:
    """``[2]`` float64 on the CPU: the sum of the values and their norm."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.detach().double().flatten()
    return torch.stack([values.sum(), values.norm()]).cpu()
