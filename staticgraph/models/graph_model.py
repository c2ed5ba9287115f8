"""A plain PyG model over graphs: encoder, convolutions, pooling, head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import GPSConv


class GraphModel(nn.Module):
    """Encoder, convolutions with norm and residual sum, pooling, head."""

    def __init__(
        self,
        node_encoder: nn.Module,
        edge_encoder: nn.Module | None,
        convs: list[nn.Module],
        hidden: int,
        num_outputs: int,
        dropout: float,
        pool: Callable[..., Tensor],
    ) -> None:
        super().__init__()
        self.node_encoder = node_encoder
        self.edge_encoder = edge_encoder
        self.convs: nn.ModuleList = nn.ModuleList(convs)
        self.norms: nn.ModuleList = nn.ModuleList(
            nn.Identity() if isinstance(conv, GPSConv) else nn.BatchNorm1d(hidden) for conv in convs
        )
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        self.pool = pool
        self.head: nn.Sequential = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, num_outputs)
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """One row per graph.

        Args:
            x: ``[n, F]`` or ``[n]`` node features, as in the store.
            edge_index: ``[2, e]`` int64.
            edge_attr: ``[e, F']`` edge features; ignored by models that use none.
            batch: ``[n]`` int64, each node's graph; None for a single graph.
            batch_size: graphs in the batch; read from ``batch`` if None.

        Returns:
            ``[batch_size, num_outputs]``.
        """
        x = self.node_encoder(x)
        edges = {}
        if self.edge_encoder is not None and edge_attr is not None:
            edges["edge_attr"] = self.edge_encoder(edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if isinstance(conv, GPSConv):
                x = conv(x, edge_index, batch, **edges)
            else:
                x = x + self.dropout(norm(conv(x, edge_index, **edges)).relu())
        return self.head(self.pool(x, batch, batch_size))
