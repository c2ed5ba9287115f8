"""Symbolic sizes of a trace: which dimensions have them, and whether other sizes fit the trace."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import maybe_mark_dynamic
from torch._functorch import autograd_function
from torch._guards import TracingContext

__all__ = ["APPLY", "Symbols", "as_number", "mark_symbolic"]

# The call as which a traced graph shows a ``torch.autograd.Function``.
APPLY: Any = autograd_function.autograd_function_apply


def mark_symbolic(tensor: Tensor, lengths: Collection[int]) -> None:
    """Lets a trace keep the dimensions of these lengths symbolic; leaves a mark on the tensor."""
    for dim, length in enumerate(tensor.shape):
        if length in lengths:
            maybe_mark_dynamic(tensor, dim)


def as_number(size: Any, numbers: Mapping[Any, int]) -> int:
    """Evaluates a size with these numbers for its symbols."""
    return int(size.node._expr.xreplace(numbers)) if isinstance(size, torch.SymInt) else size


class Symbols:
    """The symbolic sizes of a trace, and its conditions on them; made by a backend.

    Args:
        parameter: ``*parameter`` of the traced function, which takes nothing else.
        inputs: the contiguous tensors that it was called with.
    """

    def __init__(self, parameter: str, inputs: Sequence[Tensor]) -> None:
        self.mode: Any = TracingContext.get().fake_mode
        self._shapes = [tuple(value.shape) for value in inputs]
        size = re.compile(rf"L\['{parameter}'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
        self._symbols: dict[tuple[int, int], Any] = {}  # by input and dimension
        for symbol, sources in self.mode.shape_env.var_to_sources.items():
            for source in sources:
                name: Any = source.name  # a method before torch 2.12
                place = size.fullmatch(str(name() if callable(name) else name))
                if place is not None:
                    self._symbols[int(place[1]), int(place[2])] = symbol
        # A trace looks at an input, and then at all of its sizes, when the function reads it.
        self._read = {place for place, _ in self._symbols}

    def numbers(self, inputs: Sequence[Tensor]) -> dict[Any, int] | None:
        """Returns what the symbols are for other tensors; None if they do not fit the trace."""
        numbers: dict[Any, int] = {}
        for place, (shape, value) in enumerate(zip(self._shapes, inputs, strict=True)):
            if len(shape) != value.dim() or not value.is_contiguous():
                return None
            for dim, (traced, length) in enumerate(zip(shape, value.shape, strict=True)):
                symbol = self._symbols.get((place, dim))
                expected = traced if symbol is None else numbers.setdefault(symbol, length)
                if length != expected and (traced < 2 or place in self._read):
                    return None
        # A trace takes every symbol to be neither 0 nor 1.
        if min(numbers.values(), default=2) < 2:
            return None
        conditions = (guard.expr.xreplace(numbers) for guard in self.mode.shape_env.guards)
        return numbers if all(str(condition) == "True" for condition in conditions) else None
