"""Static forms of subclasses: a user's own BatchNorm is a BatchNorm still.

A mapping says which static form takes the place of which stock layer. A subclass of a stock layer
gets a class of its own, made here: ``type(name, (Subclass, Form), {})``, whose order of methods is
subclass, static form, stock layer. What the subclass overrides stays its own; what it inherits, and
what it reaches through ``super()``, is the static form's.

A class that torch makes to parametrize a module (``weight_norm``) is made again over the static
form, so that the parametrization can be removed as ever.

What it does not reach: a subclass that writes the whole forward itself, or that calls the stock
class by name (``BatchNorm1d.forward(self, x)``). Those run as they are, and the runner's check of
padding (:mod:`staticgraph.checking.padding_check`) finds what padding does to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils import parametrize

from staticgraph.nn.forms import REFUSED_FORMS, STATIC_FORMS

Forms = Mapping[type[torch.nn.Module], type[torch.nn.Module]]
_STOCK = "_staticgraph_stock"


def form_of(
    kind: type[torch.nn.Module], forms: Forms, made: bool = True
) -> type[torch.nn.Module] | None:
    """The static form of a layer's class, told by its nearest ancestor that has one.

    Args:
        kind: a stock layer, or a subclass of one.
        forms: stock layer -> its static form.
        made: give a subclass the class made for it; else the form that this class rests on.

    Returns:
        None where there is nothing to exchange: no ancestor has one, the class is static
        already, or Python allows no class of both.
    """
    stock = next((ancestor for ancestor in kind.__mro__ if ancestor in forms), None)
    if stock is None or (made and issubclass(kind, forms[stock])):
        return None
    form = forms[stock]
    if kind is stock or not made:
        return form
    if _parametrized(kind):
        return _parametrized_again(kind, form_of(kind.__bases__[0], forms))
    return _joined(kind, form)


def _parametrized(kind: type[torch.nn.Module]) -> bool:
    """Whether torch made this class, to give a module a parametrization."""
    return getattr(vars(kind).get("__getstate__"), "__module__", "") == parametrize.__name__


def _parametrized_again(
    kind: type[torch.nn.Module], form: type[torch.nn.Module] | None
) -> type[torch.nn.Module] | None:
    """The same over the static form, with the properties in the class itself and the form as its
    base, where ``remove_parametrizations`` looks for them."""
    if form is None:
        return None
    own = {n: member for n, member in vars(kind).items() if n not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (form,), own)


def _joined(
    kind: type[torch.nn.Module], form: type[torch.nn.Module]
) -> type[torch.nn.Module] | None:
    """The class of both, made once a class."""
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
    except Exception:  # a metaclass or an __init_subclass__ of the user's may refuse in any way
        return None


def _reduced(self: torch.nn.Module, protocol: Any) -> tuple[Any, ...]:
    """How such a layer is pickled: by the user's class, which a reader can import, and made static
    again when it is read."""
    _, _, *rest = object.__reduce_ex__(self, protocol)
    return _made_again, (vars(type(self))[_STOCK],), *rest


def _made_again(kind: type[torch.nn.Module]) -> torch.nn.Module:
    form = form_of(kind, STATIC_FORMS | REFUSED_FORMS) or kind
    return form.__new__(form)


def _first_line(form: type) -> str:
    text = (form.__doc__ or form.__name__).strip().splitlines()[0]
    return text.split(": ", 1)[-1]
