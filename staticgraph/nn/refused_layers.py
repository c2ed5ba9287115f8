"""Layers and functions of PyG that have no static form, refused by name with an explanation.

Each entry says what to use instead. Inside the runner a call raises NotStatic; outside, nothing
changes. Functions dispatch like those of :mod:`staticgraph.nn.functions`; layers get a forward that
refuses, so that the message names the layer and not an operation deep inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staticgraph.errors import NotStatic
from staticgraph.internals.hooks import message_hooks

_HIERARCHY = "use TopKPooling or SAGPooling, which have a static form"
_IN_DATASET = "do it once, in a transform of the data set, before the store is built"
_SAMPLE = "draw the sample outside the model and pass it in as a field of the batch"

# Layer of torch_geometric.nn -> why its shapes cannot be fixed, and what to use instead.
REFUSED_LAYERS: dict[str, tuple[str, str]] = {
    "ASAPooling": ("its clusters are a sparse product of unknown size", _HIERARCHY),
    "PANPooling": ("its score is a sparse matrix of unknown size", _HIERARCHY),
    "EdgePooling": ("it contracts edges one by one on the host", _HIERARCHY),
    "ClusterPooling": ("its clusters are connected components found on the host", _HIERARCHY),
    "GraphUNet": ("it multiplies adjacency matrices of unknown size", _HIERARCHY),
    "WLConv": ("it hashes neighbourhoods on the host", _IN_DATASET),
    "DynamicEdgeConv": ("it searches neighbours among present features", "use EdgeConv"),
    "GravNetConv": ("it searches neighbours among present features", "use EdgeConv"),
    "XConv": ("it searches neighbours among present positions", "use PointNetConv"),
    "GroupAddRev": (
        "it frees and resizes the memory of its input during autograd",
        "pass disable=True, which keeps the activations",
    ),
    "MeshCNNConv": ("it takes four edges per node in order, which padding breaks", "use EdgeConv"),
}

# Function of torch_geometric.utils -> why its shapes cannot be fixed, and what to use instead.
REFUSED_FUNCTIONS: dict[str, tuple[str, str]] = {
    "contains_self_loops": ("it reads a number off the data", _IN_DATASET),
    "unbatch": ("the sizes of its results are data", "keep the batch vector, or pool over it"),
    "unbatch_edge_index": ("the sizes of its results are data", "keep the batch vector"),
    "segregate_self_loops": ("it picks edges with a mask", _IN_DATASET),
    "get_self_loop_attr": ("it picks edges with a mask", _IN_DATASET),
    "remove_isolated_nodes": ("it picks nodes with a mask", _IN_DATASET),
    "contains_isolated_nodes": ("it reads a number off the data", _IN_DATASET),
    "subgraph": ("it picks edges with a mask", _IN_DATASET),
    "k_hop_subgraph": ("it picks edges with a mask", _IN_DATASET),
    "coalesce": ("it removes duplicates, so that the number left is data", _IN_DATASET),
    "to_undirected": ("it removes duplicates, so that the number left is data", _IN_DATASET),
    "is_undirected": ("it reads a truth value off the data", _IN_DATASET),
    "dense_to_sparse": ("the number of entries is data", "stay with the dense form"),
    "dropout_node": ("the number of nodes left is drawn", "use torch.nn.Dropout on x"),
    "dropout_path": ("the number of edges left is drawn", "use dropout on edge_attr"),
    "negative_sampling": ("the number of edges is data", _SAMPLE),
    "batched_negative_sampling": ("the number of edges is data", _SAMPLE),
    "structured_negative_sampling": ("it draws until nothing collides", _SAMPLE),
}


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Maps each refused function to one that raises NotStatic."""
    from torch_geometric import utils

    return {getattr(utils, name): _refusing(name, *why) for name, why in REFUSED_FUNCTIONS.items()}


def _refusing(name: str, reason: str, remedy: str) -> Callable[..., Any]:
    def refuse(context: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises NotStatic, whatever it is called with."""
        raise NotStatic(f"{name} has no static form, since {reason}: {remedy}")

    return refuse


def unheard_hooks(model: torch.nn.Module) -> dict[str, str]:
    """Maps the path of each module with message hooks (``register_message_forward_hook`` and
    similar) to why it is refused.

    PyG calls these hooks in eager mode and silently skips them while torch.compile traces, so the
    compiled model would compute something else.
    """
    hooks = {}
    for path, module in model.named_modules():
        kind = message_hooks(module)
        if kind is not None:
            hooks[path] = (
                f"{type(module).__name__} has a {kind}, which PyG leaves out of a compiled "
                "step: put what it does into message() or propagate's arguments, or use "
                "mode='eager'"
            )
    return hooks


def refused_options(model: torch.nn.Module) -> dict[str, str]:
    """Maps the path of each layer with an option that padding or fixed shapes make wrong to why.

    With ``cached=True``, PyG would raise for a batch of another size; with fixed shapes the error
    would go unnoticed.
    """
    refused = {}
    for path, module in model.named_modules():
        kind = type(module).__name__
        if hasattr(module, "propagate") and getattr(module, "cached", False) is True:
            refused[path] = (
                f"{kind}(cached=True) would go on with the first batch's edges: pass cached=False"
            )
        elif getattr(module, "scale_grad_by_freq", False) is True:
            refused[path] = (
                f"{kind}(scale_grad_by_freq=True) would count padding rows, too: pass "
                "scale_grad_by_freq=False"
            )
    return refused


def refused_forms() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    """Maps each refused layer to a subclass whose forward raises NotStatic inside the runner."""
    import torch_geometric.nn as pyg

    forms = {}
    for name, (reason, remedy) in REFUSED_LAYERS.items():
        stock = getattr(pyg, name, None)
        if isinstance(stock, type):
            forms[stock] = _refused_form(stock, name, reason, remedy)
    return forms


def _refused_form(
    stock: type[torch.nn.Module], name: str, reason: str, remedy: str
) -> type[torch.nn.Module]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the stock layer outside a batch; raises NotStatic inside one."""
        # GroupAddRev(disable=True) is an ordinary layer.
        if self._staticgraph.batch is None or getattr(self, "disable", False):
            return stock.forward(self, *args, **kwargs)
        raise NotStatic(f"{name} has no static form, since {reason}: {remedy}")

    return type(f"Refused{name}", (stock,), {"forward": forward, "__module__": __name__})
