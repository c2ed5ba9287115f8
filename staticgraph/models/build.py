"""The models of the train command: a small zoo of plain PyG models.

They know nothing of padding, buckets or this library's batches: ``build`` reads from a store only
what the first layer must know (widths of float features, table sizes of integer ones), and
``forward`` takes tensors. Trained through :class:`staticgraph.StaticGraphRunner` or through PyG's
own ``DataLoader`` they are the same model, which is how the two are compared.

Every model is encoder, ``layers`` convolutions, pooling over the graph, and a head of two layers.
Between convolutions stand BatchNorm, ReLU and a residual sum (Dwivedi et al. 2020, "Benchmarking
Graph Neural Networks"); GPS layers (Rampasek et al. 2022) bring norms and sums of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINConv,
    GINEConv,
    GPSConv,
    SAGEConv,
    global_add_pool,
    global_mean_pool,
)

from staticgraph.store.graph_store import GraphStore

ModelName = Literal["gine", "gps", "gin", "gcn", "gat", "sage"]
NAMES: tuple[ModelName, ...] = get_args(ModelName)
POOLS: dict[str, Callable[..., Tensor]] = {"mean": global_mean_pool, "add": global_add_pool}
# An integer feature of more values than this is an identifier, not a category: at 64 columns of
# float32 its table would take 256 MB.
MAX_CATEGORIES = 1_000_000


def build(
    name: str,
    store: GraphStore,
    *,
    hidden: int = 64,
    layers: int = 4,
    num_outputs: int = 1,
    heads: int = 4,
    dropout: float = 0.0,
    pool: str = "mean",
) -> GraphModel:
    """Builds a model for the features of a data set.

    Args:
        name: one of :data:`NAMES`.
        store: the data; only widths and largest values of ``x`` and ``edge_attr`` are read.
        hidden: columns of every layer.
        layers: convolutions.
        num_outputs: columns of the result.
        heads: attention heads of ``gps`` and ``gat``; must divide ``hidden``.
        dropout: between layers; a GPS layer drops attention weights, too.
        pool: ``mean`` or ``add``, over the nodes of a graph.

    Raises:
        ValueError: an unknown name or pool, no ``x``, no ``edge_attr`` where the model needs one,
            features that cannot be embedded, or heads that do not divide ``hidden``.
    """
    if name not in NAMES:
        raise ValueError(f"there is no model {name!r}; choose of {', '.join(NAMES)}")
    if pool not in POOLS:
        raise ValueError(f"there is no pool {pool!r}; choose of {', '.join(POOLS)}")
    if name in ("gps", "gat") and hidden % heads:
        raise ValueError(f"{name} has {heads} heads, which do not divide hidden={hidden}")
    if "x" not in store.schema:
        raise ValueError(f"{store.name} has no node features x: add some, such as ones")
    has_edges = "edge_attr" in store.schema
    if name == "gine" and not has_edges:
        raise ValueError(f"gine needs edge_attr, which {store.name} has not; gin works without")
    reads_edges = has_edges and name in ("gine", "gps")
    return GraphModel(
        node_encoder=encoder(store, "x", hidden),
        edge_encoder=encoder(store, "edge_attr", hidden) if reads_edges else None,
        convs=[convolution(name, hidden, heads, dropout, reads_edges) for _ in range(layers)],
        hidden=hidden,
        num_outputs=num_outputs,
        dropout=dropout,
        pool=POOLS[pool],
    )


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
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(
            nn.Identity() if isinstance(conv, GPSConv) else nn.BatchNorm1d(hidden) for conv in convs
        )
        self.dropout = nn.Dropout(dropout)
        self.pool = pool
        self.head = nn.Sequential(
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
        """One row a graph.

        Args:
            x: ``[n, F]`` or ``[n]`` node features, as in the store.
            edge_index: ``[2, e]`` int64.
            edge_attr: ``[e, F']`` edge features; ignored by models that use none.
            batch: ``[n]`` int64, each node's graph; None for a single graph.
            batch_size: graphs in the batch; read off ``batch`` where None.

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


class CategoryEncoder(nn.Module):
    """Integer features ``[n, C]`` or ``[n]`` -> ``[n, hidden]``: the sum of one table a column."""

    def __init__(self, sizes: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, hidden) for size in sizes)
        for table in self.tables:
            nn.init.xavier_uniform_(table.weight)  # pyright: ignore[reportArgumentType]

    def forward(self, values: Tensor) -> Tensor:
        columns = values.view(-1, len(self.tables)).long().unbind(1)
        total = self.tables[0](columns[0])
        for table, column in zip(list(self.tables)[1:], columns[1:], strict=True):
            total = total + table(column)
        return total


class NumberEncoder(nn.Module):
    """Float or boolean features ``[n, F]`` or ``[n]`` -> ``[n, hidden]``: one linear layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, values: Tensor) -> Tensor:
        weight = self.linear.weight
        return self.linear(values.view(-1, weight.shape[1]).to(weight.dtype))


def encoder(store: GraphStore, field: str, hidden: int) -> nn.Module:
    """The first layer for a field: tables for integers, a linear layer for floats."""
    described = store.schema[field]
    if not described.dtype.startswith(("int", "uint")):
        return NumberEncoder(described.width, hidden)
    sizes = store.cardinality(field)
    if max(sizes) > MAX_CATEGORIES:
        raise ValueError(
            f"{field} of {store.name} goes up to {max(sizes) - 1}, too many for an embedding "
            f"table (at most {MAX_CATEGORIES}): give it as float, or as smaller categories"
        )
    column = store.column(field)
    if column.size and column.min() < 0:
        raise ValueError(
            f"{field} of {store.name} is an integer field with values down to {column.min()}, "
            "which an embedding table cannot take: give it as float, or count from 0"
        )
    return CategoryEncoder(sizes, hidden)


def convolution(name: str, hidden: int, heads: int, dropout: float, reads_edges: bool) -> nn.Module:
    """One stock layer of ``hidden`` columns in and out."""
    if name == "gcn":
        return GCNConv(hidden, hidden)
    if name == "gat":
        return GATConv(hidden, hidden // heads, heads=heads)
    if name == "sage":
        return SAGEConv(hidden, hidden)
    inner = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
    local = GINEConv(inner) if reads_edges else GINConv(inner)
    if name == "gps":
        return GPSConv(hidden, local, heads=heads, dropout=dropout)
    return local
