"""Exchange of layers, in place and by class: same parameters, same names, same hooks.

A layer keeps its ``state_dict`` keys and its identity (an optimizer made before goes on working);
only its class changes, to one that asks the shared :class:`BatchContext` for the present batch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import torch

from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.forms import REFUSED_FORMS, STATIC_FORMS
from staticgraph.nn.functions import install
from staticgraph.nn.subclasses import form_of


def convert(
    model: torch.nn.Module, kernels: bool | Literal["all"] = False, attention: str | None = None
) -> torch.nn.Module:
    """Makes the layers of a model static and inert to padding, in place, and returns the model.

    Outside the runner the model computes what it did before. Converting twice does nothing more.

    Args:
        model: any PyG model.
        kernels: also put this library's fused kernels under the layers that have them (see
            :mod:`staticgraph.nn.fused`); batches must then be made with ``pointers=True``.
            ``"all"`` is to use those as well that were measured to be slower than the stock layer;
            at present there are none.
        attention: the path of attention among the nodes of each graph: ``dense`` (one block as
            wide as the largest graph), ``size-classed`` (a few blocks by size), ``flex`` (tiles of
            a document mask), ``varlen`` (a sequence a graph), ``kernel`` (this library's own, one
            launch each way), or ``auto``, which is what a model has that was never told: the
            cheapest that is possible here, on CUDA with ``kernels`` our own; see
            :mod:`staticgraph.sizes.attention`.

    Raises:
        ValueError: no such path of attention, or another value of ``kernels``.
    """
    if kernels not in (False, True, "all"):
        raise ValueError(f"kernels={kernels!r}; choose one of False, True, 'all'")
    context = context_of(model)
    if attention is not None:
        context.attention.ask(attention)
    if kernels:
        from staticgraph.nn.fused import fuse

        fuse(model, context)
    return model


def context_of(model: torch.nn.Module) -> BatchContext:
    """The context that a model's converted layers share; converts the model if need be, and makes
    PyG's functions ask for the present batch."""
    install()
    forms = STATIC_FORMS | REFUSED_FORMS
    static = tuple(forms.values())
    present: list[object] = [vars(m).get("_staticgraph") for m in model.modules()]
    context = next((found for found in present if isinstance(found, BatchContext)), None)
    if context is None:
        context = BatchContext()
    for module in model.modules():
        form = form_of(type(module), forms)
        if form is not None:
            with suppress(TypeError):  # another layout of memory: it stays what it is
                module.__class__ = form
        if isinstance(module, static) or hasattr(module, "_staticgraph"):
            module.__dict__["_staticgraph"] = context
    return context
