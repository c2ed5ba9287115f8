"""Exchange of layers, in place and by class: same parameters, same names, same hooks.

A layer keeps its ``state_dict`` keys and its identity (an optimizer made before goes on working);
only its class changes, to one that asks the shared :class:`BatchContext` for the present batch.
"""

from __future__ import annotations

import torch
from torch_geometric.nn import GPSConv

from staticgraph.nn.batch_norm import MaskedBatchNorm1d
from staticgraph.nn.context import BatchContext
from staticgraph.nn.gps import StaticGPSConv

# Stock layer -> its static form. Only the exact class is exchanged: a subclass may do anything.
STATIC_FORMS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.BatchNorm1d: MaskedBatchNorm1d,
    GPSConv: StaticGPSConv,
}


def convert(model: torch.nn.Module) -> torch.nn.Module:
    """Makes the layers of a model static and inert to padding, in place, and returns the model.

    Outside the runner the model computes what it did before. Converting twice does nothing more.
    """
    context_of(model)
    return model


def context_of(model: torch.nn.Module) -> BatchContext:
    """The context that a model's converted layers share; converts the model if need be."""
    forms = set(STATIC_FORMS.values())
    present = [module._staticgraph for module in model.modules() if type(module) in forms]
    context = present[0] if present else BatchContext()
    for module in model.modules():
        form = STATIC_FORMS.get(type(module))
        if form is not None:
            module.__class__ = form
        if type(module) in forms:
            module._staticgraph = context  # pyright: ignore[reportAttributeAccessIssue]
    return context
