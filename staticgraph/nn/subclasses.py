"""Static forms of subclasses, such as a user's own BatchNorm.

:func:`static_forms` says which static form replaces which stock layer. A subclass of a stock layer
gets its own class, made here: ``type(name, (Subclass, Form), {})``, whose method resolution order
is subclass, static form, stock layer. Methods that the subclass overrides stay its own; methods
that it inherits, or calls through ``super()``, are the static form's.

A class that torch makes to parametrize a module (``weight_norm``) is rebuilt on top of the static
form, so that the parametrization can still be removed.

Not covered: a subclass that writes the whole forward itself, or that calls the stock class by name
(``BatchNorm1d.forward(self, x)``). Those run unchanged, and the runner's padding check
(:mod:`staticgraph.checking.padding_check`) detects the effect of padding on them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils import parametrize

from staticgraph.internals.hooks import has_pyg
from staticgraph.nn.aggr.recurrent import StaticGRU, StaticLSTM
from staticgraph.nn.norm.batch_norm import (
    MaskedBatchNorm1d,
    MaskedBatchNorm2d,
    MaskedSyncBatchNorm,
)

_STOCK = "_staticgraph_stock"


@functools.cache
def static_forms() -> Mapping[type[torch.nn.Module], type[torch.nn.Module]]:
    """Returns the static form of each stock layer, or the form that refuses it: of torch's own and,
    where PyG is installed, of PyG's."""
    forms: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
        torch.nn.BatchNorm1d: MaskedBatchNorm1d,
        torch.nn.BatchNorm2d: MaskedBatchNorm2d,
        torch.nn.SyncBatchNorm: MaskedSyncBatchNorm,
        torch.nn.LSTM: StaticLSTM,
        torch.nn.GRU: StaticGRU,
    }
    if has_pyg():
        from staticgraph.nn.static_forms import PYG_FORMS

        forms |= PYG_FORMS
    return forms


def form_of(kind: type[torch.nn.Module], derived: bool = True) -> type[torch.nn.Module] | None:
    """Returns the static form of a layer's class, found through its nearest ancestor that has one.

    Args:
        kind: a stock layer, or a subclass of one.
        derived: for a subclass, return the class made for it; otherwise the form that this class is
            based on.

    Returns:
        None where there is nothing to convert: no ancestor has a form, the class is static
        already, or Python allows no class with both bases.
    """
    forms = static_forms()
    stock = next((ancestor for ancestor in kind.__mro__ if ancestor in forms), None)
    if stock is None or (derived and issubclass(kind, forms[stock])):
        return None
    form = forms[stock]
    if kind is stock or not derived:
        return form
    if _parametrized(kind):
        return _parametrized_again(kind, form_of(kind.__bases__[0]))
    return _joined(kind, form)


def _parametrized(kind: type[torch.nn.Module]) -> bool:
    """Whether torch made this class to parametrize a module."""
    return getattr(vars(kind).get("__getstate__"), "__module__", "") == parametrize.__name__


def _parametrized_again(
    kind: type[torch.nn.Module], form: type[torch.nn.Module] | None
) -> type[torch.nn.Module] | None:
    """The parametrized class rebuilt on the static form.

    It has the properties itself and the form as its base, as ``remove_parametrizations`` expects.
    """
    if form is None:
        return None
    members = {
        n: member for n, member in vars(kind).items() if n not in ("__dict__", "__weakref__")
    }
    return type(kind.__name__, (form,), members)


def _joined(
    kind: type[torch.nn.Module], form: type[torch.nn.Module]
) -> type[torch.nn.Module] | None:
    """The class derived from both, made once per ``kind``."""
    for known in type.__subclasses__(kind):
        if vars(known).get(_STOCK) is kind:
            return known
    members: dict[str, Any] = {
        _STOCK: kind,
        "__module__": kind.__module__,
        "__qualname__": f"Static{kind.__qualname__}",
        "__doc__": f"``{kind.__name__}``: {_first_line(form)}",
    }
    if kind.__reduce_ex__ is object.__reduce_ex__:
        members["__reduce_ex__"] = _reduced
    meta: Any = type(kind)
    try:
        return meta(f"Static{kind.__name__}", (kind, form), members)
    except Exception:  # the user's metaclass or __init_subclass__ may raise anything
        return None


def _reduced(self: torch.nn.Module, protocol: Any) -> tuple[Any, ...]:
    """Pickles such a layer by the user's class, which a reader can import; unpickling makes it
    static again."""
    _, _, *rest = object.__reduce_ex__(self, protocol)
    return _made_again, (vars(type(self))[_STOCK],), *rest


def _made_again(kind: type[torch.nn.Module]) -> torch.nn.Module:
    form = form_of(kind) or kind
    return form.__new__(form)


def _first_line(form: type) -> str:
    text = (form.__doc__ or form.__name__).strip().splitlines()[0]
    return text.split(": ", 1)[-1]
