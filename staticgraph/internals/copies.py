"""Copies of objects in code that Dynamo traces."""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["copied"]

# torch 2.11 cannot trace access to an object's ``__dict__``.
_LOOKS_INTO_OBJECTS = not torch.__version__.startswith("2.11.")


def copied(instance: Any) -> Any:
    """Returns a copy of a dataclass instance, of which the caller sets each field.

    ``copy.copy`` cannot be traced on torch 2.11, nor on 2.13 if the class has slots. So under
    tracing, attributes that are not fields are copied only if torch can trace access to
    ``__dict__``, and slots that are not fields stay empty.
    """
    if not torch.compiler.is_dynamo_compiling():
        return copy.copy(instance)
    made = object.__new__(type(instance))
    if _LOOKS_INTO_OBJECTS and hasattr(instance, "__dict__"):
        made.__dict__.update(instance.__dict__)
    return made
