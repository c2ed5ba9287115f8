"""Checks that all ranks train the same model, including state that is not reduced.

The problem: gradients and the running statistics of norms are reduced over ranks, but one rank may
load other parameters, or change one in place; and a forward may write to other state, a codebook or
an average, from its own rows. The ranks then train different models, and no number looks wrong. The
idea: in some steps a checksum of all bits travels with the gradients, which costs no message of its
own; only if it differs, two sums of every tensor are compared, and the tensor and rank are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from staticgraph.distributed.ranks import Ranks

# The tolerance, relative to a tensor's norm. State that is equal on all ranks is equal bit for bit;
# a moving average with a weight of a thousandth per batch differs by more after its first batch.
APART = 1e-6
# An integer type for each size of a number, and the largest checksum: float32 holds it exactly.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LARGEST = (1 << 24) - 1


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """Returns a whole number up to 2^24 that changes with any bit of the tensors, 0-dim int64.

    Reads every tensor once, on its device, without waiting for it.
    """
    sums = [_bits(tensor).sum(dtype=torch.int64) for tensor in tensors if tensor.numel()]
    if not sums:
        return torch.zeros((), dtype=torch.int64)
    found = torch.stack(sums)
    places = torch.arange(1, 2 * len(sums), 2, device=found.device)  # odd: no bit is lost
    total = (found * places).sum()
    return (total ^ (total >> 24) ^ (total >> 48)) & _LARGEST


def _bits(tensor: Tensor) -> Tensor:
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return values if values.dtype == torch.bool else values.view(_BITS[values.element_size()])


@torch.no_grad()
def apart(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, list[int]]:
    """The tensors whose values differ from rank 0's, by name, and the ranks on which they do.

    The result is the same on every rank, and empty if the ranks give different numbers of tensors.

    Args:
        tensors: tensors by name, in the same order on every rank. Of one with values that are not
            finite only that is compared.
        ranks: the processes that compare.
    """
    sums = ranks.gathered(
        torch.stack([_sums(tensor) for tensor in tensors.values()] or [torch.zeros(2)])
    )
    if len({len(rows) for rows in sums}) > 1:
        return {}
    first = sums[0]
    sizes = torch.tensor([max(1, tensor.numel()) for tensor in tensors.values()] or [1])
    bound = APART * torch.stack([sizes.sqrt() * first[:, 1], first[:, 1]], 1) + APART**2
    differs = torch.stack(
        [((rows - first).abs() > bound) | (rows.isfinite() != first.isfinite()) for rows in sums]
    )
    by_tensor = differs.any(2).T.tolist()  # [tensors, ranks]
    return {
        name: [rank for rank, other in enumerate(others) if other]
        for name, others in zip(tensors, by_tensor, strict=False)
        if any(others)
    }


def _sums(tensor: Tensor) -> Tensor:
    """``[2]`` float64 on the CPU: the sum of the values and their norm."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.detach().double().flatten()
    return torch.stack([values.sum(), values.norm()]).cpu()
