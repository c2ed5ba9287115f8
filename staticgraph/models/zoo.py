"""The models of the train command: a small set of plain PyG models.

They are independent of padding, buckets and this library's batches: ``build`` reads from a store
only what the first layer needs (widths of float features, table sizes of integer ones), and
``forward`` takes tensors. Trained through :class:`staticgraph.StaticGraphRunner` or through PyG's
own ``DataLoader`` they are the same model, so that the two can be compared.

Every model is an encoder, ``layers`` convolutions, pooling over the graph, and a head of two
layers. Each convolution is followed by BatchNorm, ReLU and a residual sum (Dwivedi et al. 2020,
"Benchmarking Graph Neural Networks"); GPS layers (Rampasek et al. 2022) have their own norms and
sums.
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

from staticgraph.models.encoders import encoder
from staticgraph.models.graph_model import GraphModel
from staticgraph.store.graph_store import GraphStore

ModelName = Literal["gine", "gps", "gin", "gcn", "gat", "sage"]
NAMES: tuple[ModelName, ...] = get_args(ModelName)
POOLS: dict[str, Callable[..., Tensor]] = {"mean": global_mean_pool, "add": global_add_pool}


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
        dropout: between layers; in a GPS layer, after its two branches and in its MLP.
        pool: ``mean`` or ``add``, over the nodes of a graph.

    Raises:
        ValueError: an unknown name or pool, nodes of several types, no ``x``, no ``edge_attr``
            where the model needs one, features that cannot be embedded, or heads that do not
            divide ``hidden``.
    """
    if name not in NAMES:
        raise ValueError(f"there is no model {name!r}; choose one of {', '.join(NAMES)}")
    if pool not in POOLS:
        raise ValueError(f"there is no pool {pool!r}; choose one of {', '.join(POOLS)}")
    if name in ("gps", "gat") and hidden % heads:
        raise ValueError(
            f"{name} has {heads} heads, which do not divide hidden={hidden}: give a multiple"
        )
    if store.schema.hetero:
        raise ValueError(
            f"the models {', '.join(NAMES)} take graphs with one type of nodes, and "
            f"{store.name} has {len(store.schema.node_axes)} types: give your own model, --model "
            "MODULE:NAME"
        )
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


def convolution(name: str, hidden: int, heads: int, dropout: float, reads_edges: bool) -> nn.Module:
    """Returns one stock layer with ``hidden`` columns in and out."""
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
