"""In-place conversion of layers by changing their class: same parameters, names and hooks.

A layer keeps its ``state_dict`` keys and its identity (an existing optimizer keeps working); only
its class changes, to one that gets the current batch from the shared :class:`BatchContext`.
"""

from __future__ import annotations

from contextlib import suppress

import torch

from staticgraph.internals.hooks import has_pyg
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.search_room import SearchRoom
from staticgraph.nn.subclasses import form_of, static_forms
from staticgraph.sizes.attention import check_path


def convert(
    model: torch.nn.Module, kernels: bool = False, attention: str | None = None
) -> torch.nn.Module:
    """Makes the layers of a model static and inert to padding, in place, and returns the model.

    Outside the runner the model computes what it did before. Converting twice has no further
    effect.

    Args:
        model: any PyG model.
        kernels: also rewrite compiled and recorded steps to this library's kernels
            (:mod:`staticgraph.rewrites`). Has no effect on eager steps: ``mode="fused"`` rewrites
            those.
        attention: the path of attention among the nodes of each graph: ``dense`` (one block as
            wide as the largest graph), ``kernel`` (this library's own, over the pairs of nodes
            within each graph), or ``auto``: the kernel where it can run, except on a CPU for large
            graphs of similar size; see :mod:`staticgraph.sizes.attention`. None keeps the model's
            setting, initially ``auto``.

    Raises:
        ValueError: unknown attention path, or ``kernels`` is not a bool.
    """
    if not isinstance(kernels, bool):
        raise ValueError(f"kernels={kernels!r}; choose True or False")
    if attention is not None:
        check_path(attention)
    context = context_of(model)
    if attention is not None:
        context.attention = attention
    if kernels:
        context.kernels = True
        model.__dict__["_staticgraph"] = context  # none of its layers may have a static form
    return model


def context_of(model: torch.nn.Module) -> BatchContext:
    """Returns the context that a model's converted layers share.

    Converts layers that are not converted yet, and makes PyG's functions dispatch on the current
    batch.
    """
    if has_pyg():
        from staticgraph.nn.functions import install

        install()
    static = tuple(static_forms().values())
    present: list[object] = [vars(m).get("_staticgraph") for m in model.modules()]
    context = next((value for value in present if isinstance(value, BatchContext)), None)
    if context is None:
        context = BatchContext()
    for module in model.modules():
        form = form_of(type(module))
        if form is not None:
            with suppress(TypeError):  # incompatible object layout: the class stays as it is
                module.__class__ = form
        if isinstance(module, static) or hasattr(module, "_staticgraph"):
            module.__dict__["_staticgraph"] = context
        if isinstance(module, SearchRoom):
            context.search_room = module
    return context
