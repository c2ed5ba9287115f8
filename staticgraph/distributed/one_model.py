"""Checks that all ranks train the same model, including state that is not reduced.

The problem: gradients and the running statistics of norms are reduced over ranks, but one rank may
load other parameters, or change one in place; and a forward may write to other state, a codebook or
an average, from its own rows. The ranks then train different models, and no number looks wrong. The
idea: in some steps a checksum of all bits travels with the gradients, which costs no message of its
own; only if it differs is every tensor compared with rank 0's, and tensor and rank are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from staticgraph.distributed.ranks import Ranks

# The tolerance, relative to a tensor's largest value. On processors of one kind equal state is so
# bit for bit; a moving average with a weight of a thousandth per batch differs by more at once.
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
    factors = torch.arange(1, 2 * len(sums), 2, device=sums[0].device)  # odd: no bit is lost
    total = (torch.stack(sums) * factors).sum()
    return (total ^ (total >> 24) ^ (total >> 48)) & _LARGEST


def _bits(tensor: Tensor) -> Tensor:
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return values if values.dtype == torch.bool else values.view(_BITS[values.element_size()])


@torch.no_grad()
def apart(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, list[int]]:
    """The tensors whose values differ from rank 0's, by name, and the ranks on which they do.

    The result is the same on every rank, and empty if the ranks give other numbers of tensors, or
    other shapes. Every tensor of rank 0 is sent to all.

    Args:
        tensors: tensors by name, in the same order on every rank.
        ranks: the processes that compare.
    """
    shapes = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors.values()]
    if any(other != shapes for other in ranks.gather_objects(shapes)) or not shapes:
        return {}
    first = [tensor.detach().clone() for tensor in tensors.values()]
    ranks.take_from_first(first)
    differs = torch.tensor([differ(*pair) for pair in zip(tensors.values(), first, strict=True)])
    by_tensor = torch.stack(ranks.gathered(differs), 1).tolist()  # [tensors, ranks]
    return {
        name: [rank for rank, other in enumerate(others) if other]
        for name, others in zip(tensors, by_tensor, strict=True)
        if any(others)
    }


def differ(tensor: Tensor, other: Tensor) -> bool:
    """Returns whether a value differs by more than rounding, or is finite in one tensor alone."""
    pair = [torch.view_as_real(each) if each.is_complex() else each for each in (tensor, other)]
    ours, theirs = (each.detach().double() for each in pair)
    finite = ours.isfinite()
    if not torch.equal(finite, theirs.isfinite()):
        return True
    ours, theirs = ours[finite], theirs[finite]
    if not ours.numel():
        return False
    return bool((ours - theirs).abs().max() > APART * theirs.abs().max() + APART**2)
