"""Layers that carry known labels along: written through a mask in PyG, chosen by it here.

``x[mask] += emb(y[mask])`` makes as many rows as the mask has True; a ``where`` over all rows gives
the same numbers in a shape that is known.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import LabelPropagation, MaskLabel

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext


class StaticMaskLabel(MaskLabel):
    """``MaskLabel`` of fixed shape."""

    _staticgraph: BatchContext

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """``x`` ``[N, F]`` with an embedding of ``y`` ``[N]`` int64 where ``mask`` ``[N]`` bool."""
        if self._staticgraph.batch is None or mask.dtype != torch.bool:
            return super().forward(x, y, mask)
        known = torch.where(mask[:, None], self.emb(torch.where(mask, y, 0)), 0)
        return torch.cat([x, known], -1) if self.method == "concat" else x + known


class StaticLabelPropagation(LabelPropagation):
    """``LabelPropagation`` of fixed shape."""

    _staticgraph: BatchContext

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - no sparse tensors here
        self,
        y: Tensor,
        edge_index: Tensor,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """``y`` ``[N, classes]``, known where ``mask`` ``[N]`` bool; the same, propagated.

        Raises:
            NotStatic: ``y`` are classes ``[N]``, whose number only their values tell.
        """
        if self._staticgraph.batch is not None:
            if y.dtype == torch.long and y.size(0) == y.numel():
                raise NotStatic(
                    "LabelPropagation was given labels [N], whose number of classes only their "
                    "values tell: pass torch.nn.functional.one_hot(y, num_classes).float()"
                )
            if mask is not None and mask.dtype == torch.bool:
                y, mask = torch.where(mask[:, None], y, 0), None
        return super().forward(y, edge_index, mask, edge_weight, post_step)
