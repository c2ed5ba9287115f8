"""Whether what all ranks train is still one: parameters and state that nobody adds up.

The problem: gradients and the running statistics of norms become one on all ranks, and a model may
have more: a codebook that its forward moves, an embedding whose rows are renormed, the centres of a
loss. Each rank then writes its own rows' values, the ranks train different models, and no number
looks wrong. The idea: after steps 1, 2, 4, 8, ... two sums of every tensor are compared with rank
0's. Who counts steps alike compares at the same ones, so nobody waits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from staticgraph.distributed.ranks import Ranks

# Of a tensor's norm. What is one on all ranks is the same bits; an average that takes a thousandth
# of each batch is apart by more after its first.
APART = 1e-6


@torch.no_grad()
def apart(tensors: Mapping[str, Tensor], ranks: Ranks) -> list[str]:
    """The tensors that are not on every rank what they are on rank 0, by their names; the same
    answer on every rank. Nothing where the ranks name different numbers of them.

    Args:
        tensors: by name, in the same order on every rank; what is not finite on either is left out.
        ranks: who compares.
    """
    mine = torch.stack([_sums(tensor) for tensor in tensors.values()] or [torch.zeros(2)])
    told = ranks.gathered(mine)
    if len({len(rows) for rows in told}) > 1:
        return []
    first = told[0]
    sizes = torch.tensor([max(1, tensor.numel()) for tensor in tensors.values()] or [1])
    bound = APART * torch.stack([sizes.sqrt() * first[:, 1], first[:, 1]], 1) + APART**2
    differs = torch.stack([(rows - first).abs() > bound for rows in told]).any(0).any(1)
    return [name for name, found in zip(tensors, differs.tolist(), strict=False) if found]


def _sums(tensor: Tensor) -> Tensor:
    """``[2]`` float64 on the CPU: of the values, and their norm."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.detach().double().flatten()
    return torch.stack([values.sum(), values.norm()]).cpu()
