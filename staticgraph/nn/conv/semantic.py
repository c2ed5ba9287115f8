"""Attention among relations, over the real nodes of a type.

HANConv weights its metapaths by a mean over all nodes of a type (Wang et al. 2019, equation 7),
which would include padding: it is the only place in PyG's heterogeneous convolutions where rows of
different graphs meet. Here the mean is over the real rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn.conv.han_conv import group

from staticgraph.nn.context.batch_context import BatchContext


def static_group(
    context: BatchContext, xs: list[Tensor], q: nn.Parameter, k_lin: nn.Module
) -> tuple[Tensor | None, Tensor | None]:
    """Combines the relations' rows ``[N, F]`` by semantic attention: returns the sum ``[N, F]`` and
    the weights ``[relations]``, from means over real nodes."""
    if not xs:
        return None, None
    mask = context.mask_of(xs[0])
    out = torch.stack(xs)
    keys = torch.where(mask[:, None], torch.tanh(k_lin(out)), 0)
    # Without any real node PyG's mean is NaN, but then it has no row to write it to.
    mean = keys.sum(1) / mask.sum().clamp(min=1)
    weights = F.softmax((q * mean).sum(-1), dim=0)
    return (weights.view(-1, 1, 1) * out).sum(0), weights


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps PyG's function to its equivalent that leaves padding out."""
    return {group: static_group}
