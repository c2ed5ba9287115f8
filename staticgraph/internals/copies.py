"""Copies of objects that Dynamo traces."""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["copied"]

# torch 2.11 traces no look into an object's ``__dict__``.
_LOOKS_INTO_OBJECTS = not torch.__version__.startswith("2.11.")


def copied(instance: Any) -> Any:
    """A copy of a dataclass's instance, for the caller to set each field of.

    ``copy.copy`` is not traced on torch 2.11, nor on 2.13 where the class has slots. So what is
    traced has the attributes that are no fields only where torch can look at them, and slots that
    are no fields are empty.
    """
    if not torch.compiler.is_dynamo_compiling():
        return copy.copy(instance)
    made = object.__new__(type(instance))
    if _LOOKS_INTO_OBJECTS and hasattr(instance, "__dict__"):
        made.__dict__.update(instance.__dict__)
    return made
