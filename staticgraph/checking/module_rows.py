"""A preflight's finding on one module, as one row of its table."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from staticgraph.checking.report import ModuleRow
from staticgraph.nn.conv.gps import StaticGPSConv
from staticgraph.nn.forms import REFUSED_FORMS, STATIC_FORMS
from staticgraph.nn.subclasses import form_of
from staticgraph.steps.tracing.obstacles import Obstacle


def module_row(
    path: str,
    module: torch.nn.Module,
    obstacles: Sequence[Obstacle],
    attention: str | None,
    inert: bool | None,
) -> ModuleRow:
    """Returns the row of a module.

    Args:
        path: its name in the model.
        module: as it was given, not yet converted.
        obstacles: those found in it.
        attention: the path that its attention takes, if known.
        inert: whether its real outputs were the same with other padding; None if that was not
            measured.
    """
    form = form_of(type(module), STATIC_FORMS | REFUSED_FORMS, made=False)
    attends = isinstance(getattr(module, "attn", None), torch.nn.MultiheadAttention)
    if obstacles:
        how = obstacles[0].kind
        if how != "refused":  # the message is printed below the table
            how += f": {obstacles[0].operation.splitlines()[0][:60]}"
    elif form is StaticGPSConv and attends:
        how = f"attention {attention}, see below" if attention else "attention"
    elif form is not None:
        how = _first_sentence(form)
    else:
        how = "as it is"
    return ModuleRow(path, type(module).__name__, how, inert)


def is_layer(module: torch.nn.Module) -> bool:
    """Whether a module has a row despite its children: a PyG layer, or one with a static form."""
    kind = type(module)
    known = form_of(kind, STATIC_FORMS | REFUSED_FORMS, made=False) is not None
    return known or kind.__module__.startswith("torch_geometric.")


def _first_sentence(form: type) -> str:
    """Returns a static form's docstring's first sentence, without what the row already says."""
    text = " ".join((form.__doc__ or form.__name__).split()).replace("``", "")
    sentence = re.split(r"\.(?: |$)", text)[0]
    sentence = sentence.split(": ", 1)[-1] if ": " in sentence else sentence.split("; ", 1)[-1]
    return sentence.removeprefix("Takes the place of ").removesuffix(", with the same state")
