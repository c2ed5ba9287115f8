"""Layers that propagate known labels: PyG writes through a mask, the static forms use ``where``.

``x[mask] += emb(y[mask])`` produces as many rows as the mask has True entries; a ``where`` over all
rows gives the same numbers in a known shape.
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
        """Adds the embedding of ``y`` ``[N]`` int64 to ``x`` ``[N, F]`` where ``mask`` ``[N]`` bool
        (or concatenates it)."""
        if self._staticgraph.batch is None or mask.dtype != torch.bool:
            return super().forward(x, y, mask)
        embedded = torch.where(mask[:, None], self.emb(torch.where(mask, y, 0)), 0)
        return torch.cat([x, embedded], -1) if self.method == "concat" else x + embedded


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
        """Propagates ``y`` ``[N, classes]``, known where ``mask`` ``[N]`` bool; the same shape.

        Raises:
            NotStatic: ``y`` holds classes ``[N]``; their number could only be read from the values.
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
