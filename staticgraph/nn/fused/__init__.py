"""Stock layers that call this library's kernels, converted in place by changing their class.

The problem: a GINE layer is a gather, a sum, a ReLU and a scatter over ``[E, F]``, each a separate
kernel and pass over memory; a BatchNorm, a ReLU and a residual sum are three more. The idea: layers
whose arithmetic has a fused operator in :mod:`staticgraph.kernels` change their class to a subclass
that calls it. Parameters, names, hooks and results stay (results up to rounding).

Invariant: where a fused form does not apply (another aggregation, edges that are not the batch's
own, no batch bound) it runs the stock code, and :func:`fused_layers` says where and why. Second
derivatives are not supported, so models that compute forces must not use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch_geometric.nn import MessagePassing

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.fused.conv import (
    FusedGINConv,
    FusedGINEConv,
    FusedGraphConv,
    FusedSAGEConv,
)
from staticgraph.nn.fused.encoder import FusedEncoder, encoder_form
from staticgraph.nn.fused.gat import FusedGATConv, FusedGATv2Conv
from staticgraph.nn.fused.gcn import FusedGCNConv
from staticgraph.nn.fused.gps import FusedGPSConv
from staticgraph.nn.fused.linear import FusedLinear, FusedSequential
from staticgraph.nn.fused.norm import FusedBatchNorm1d
from staticgraph.nn.fused.pool import (
    FusedMaxAggregation,
    FusedMeanAggregation,
    FusedSoftmaxAggregation,
    FusedSumAggregation,
)
from staticgraph.nn.fused.transformer import FusedTransformerConv

__all__ = ["FusedLayer", "fuse", "fused_layers"]

FORMS: tuple[type, ...] = (
    FusedGINEConv,
    FusedGINConv,
    FusedSAGEConv,
    FusedGraphConv,
    FusedGCNConv,
    FusedGATConv,
    FusedGATv2Conv,
    FusedTransformerConv,
    FusedGPSConv,
    FusedBatchNorm1d,
    FusedLinear,
    FusedSequential,
    FusedSumAggregation,
    FusedMeanAggregation,
    FusedMaxAggregation,
    FusedSoftmaxAggregation,
)
# Maps the stock class that each form extends to the form. Only that exact class is converted.
BY_STOCK: dict[type[Any], type[Any]] = {form.__bases__[-1]: form for form in FORMS}


class FusedLayer(NamedTuple):
    """One layer that has a fused form: its name in the model, the form, and why it last ran the
    stock code, or None if it did not."""

    name: str
    form: str
    stock_reason: str | None


def fuse(model: torch.nn.Module, context: BatchContext) -> None:
    """Converts, in place, the layers of a converted model that have a fused form."""
    context.kernels = True
    inner = {
        id(module.aggr_module) for module in model.modules() if isinstance(module, MessagePassing)
    }
    for number, module in enumerate(model.modules()):
        if id(module) in inner:
            continue  # covered by the layer's own fused form
        form = BY_STOCK.get(type(module)) or encoder_form(module)
        if form is not None:
            module.__class__ = form
            module.__dict__["_staticgraph"] = context
            module.__dict__["_number"] = number
            module.prepare()  # pyright: ignore[reportCallIssue]


def fused_layers(model: torch.nn.Module) -> Iterator[FusedLayer]:
    """Yields the layers of a model that have a fused form, and how the last forward ran them."""
    for name, module in model.named_modules():
        if isinstance(module, (*FORMS, FusedEncoder)):
            reason = getattr(module, "stock_reason", None)
            yield FusedLayer(name, type(module).__name__, reason)
