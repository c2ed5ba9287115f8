"""Values that a recording assumes: which of them are watched, and whether one has changed."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial)


class _Gone:
    def __repr__(self) -> str:
        return "not there"


GONE = _Gone()


def is_watched(value: Any) -> bool:
    """Whether a public attribute with this value is watched; an empty list may still be filled."""
    if type(value) is list and not value:
        return False
    if isinstance(value, tuple | list):
        return all(isinstance(item, PLAIN) for item in value)
    return isinstance(value, (*PLAIN, *_FUNCTIONS, Tensor))


def differ(now: Any, noted: Any) -> bool:
    """Whether a value has changed; values of other kinds need not be comparable."""
    if now is noted:
        return False
    if isinstance(noted, tuple) and isinstance(now, tuple | list):
        return len(now) != len(noted) or any(map(differ, now, noted))
    if isinstance(noted, PLAIN) and isinstance(now, PLAIN):
        return type(now) is not type(noted) or now != noted
    return True


def text_of(value: Any) -> str:
    """Returns the text of a value in a message."""
    if isinstance(value, (*PLAIN, _Gone, tuple, list)):
        return repr(value)
    return getattr(value, "__qualname__", None) or f"a {type(value).__name__}"
