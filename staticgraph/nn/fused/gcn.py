"""GCN over the batch's own edges: self-loops and normalisation without materialising them.

Stock ``GCNConv`` appends one self-loop per node to ``edge_index``, sums weights by destination,
takes roots, gathers them twice, multiplies, gathers the features, multiplies and scatters, all in
every layer. Here the degrees come from the row pointers once per forward (:func:`gcn_degrees`) and
are shared by all layers; a layer is its product and one operator (:func:`gcn_sum`). Existing
self-loops keep their weight, as in PyG's ``add_remaining_self_loops``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.kernels.gcn_sum import gcn_degrees, gcn_sum
from staticgraph.nn.fused.conv import ALL, SUM, obstacle, summed
from staticgraph.nn.fused.layer import Fused


class FusedGCNConv(Fused, GCNConv):
    """``D^-1/2 (A + I) D^-1/2 X W`` (Kipf and Welling 2017, arXiv 1609.02907)."""

    reads_pointers = True

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """``[N, F]`` to ``[N, out]``: self-loops, normalisation and sum in one operator."""
        batch = self.batch
        if not self.use(self._obstacle(batch, x, edge_index, edge_weight)):
            return super().forward(x, edge_index, edge_weight)
        assert batch is not None
        if not self.normalize:
            transform = "copy" if edge_weight is None else "multiply"
            out = summed(batch, self.lin(x), edge_weight, self, transform=transform)
            return out if self.bias is None else out + self.bias
        weight, root, own = self._degrees(batch, x, edge_weight)
        rows = self.lin(x)
        dtype = torch.promote_types(rows.dtype, x.dtype)
        return gcn_sum(
            rows,
            root,
            own,
            batch.edge_index[0],
            batch.edge_index[1],
            batch.row_ptr,
            batch.col_ptr,
            batch.transpose,
            weight=weight,
            bias=self.bias,
            loops=self.add_self_loops,
            dtype=dtype if weight is None else torch.promote_types(dtype, weight.dtype),
        )

    def _obstacle(
        self, batch: StaticBatch | None, x: Any, edge_index: Any, edge_weight: Tensor | None
    ) -> str | None:
        # The maximum of weighted messages has no fused form.
        aggr = SUM if self.normalize else ALL if edge_weight is None else (*SUM, "mean")
        reason = obstacle(self, batch, x, edge_index, None, aggr=aggr)
        if reason is not None:
            return reason
        if edge_weight is None:
            return None
        if edge_weight.dim() != 1 or not edge_weight.is_floating_point():
            return "edge_weight is not one float per edge"
        return None

    def _degrees(
        self, batch: StaticBatch, x: Tensor, edge_weight: Tensor | None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Edge weights, inverse roots of degrees and self-loop weights, made once per forward."""
        # PyG fills with 2 (improved) only if there are edge weights.
        fill = 2.0 if self.improved and edge_weight is not None else 1.0
        like = torch.empty(0, dtype=x.dtype, device=x.device)

        def make() -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
            """The weights as given and as used, then ``[N]`` inverse roots and loop weights."""
            weight = edge_weight
            if weight is not None:
                # The degree is raised to -1/2: a negative one would give NaN in the padding.
                weight = torch.where(batch.edge_mask, weight, 1)
            root, own = gcn_degrees(
                batch.edge_index[0], batch.row_ptr, weight, fill, self.add_self_loops, like
            )
            return edge_weight, weight, root, own

        key = ("gcn", fill, self.add_self_loops, x.dtype, edge_weight is None)
        given, weight, root, own = self._staticgraph.once(key, make)
        if given is not edge_weight:  # a layer with other weights
            _, weight, root, own = make()
        return weight, root, own
