"""Patch points: symbols of other libraries, their replacements, and the reasons."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from staticgraph.dryrun.availability import torch_version
from staticgraph.errors import DryRunBroken

MISSING = object()


@dataclass(frozen=True, slots=True)
class PatchPoint:
    """A patched symbol as ``module:attribute.path``, its group, and the reason."""

    symbol: str
    group: str
    why: str


class PatchPoints:
    """Applies patches and keeps a list of them.

    Args:
        leave_out: a symbol that is not patched.
    """

    def __init__(self, leave_out: str | None = None) -> None:
        self.points: list[PatchPoint] = []
        self._leave_out = leave_out
        self._group = ""

    @contextmanager
    def of(self, group: str) -> Iterator[None]:
        """Assigns the patches made inside to a group, which the self-test tries as one."""
        self._group = group
        try:
            yield
        finally:
            self._group = ""

    def put(self, symbol: str, value: Any, why: str, new: bool = False) -> None:
        """Replaces a symbol by a value.

        Args:
            symbol: ``module:attribute.path``.
            value: the replacement.
            why: the reason, for the message.
            new: whether the symbol may be missing: a CPU build of torch lacks some of CUDA's.

        Raises:
            DryRunBroken: there is no such symbol.
        """
        owner, name = _owner(symbol, why)
        if getattr(owner, name, MISSING) is MISSING and not new:
            raise _missing(symbol, why)
        self.points.append(PatchPoint(symbol, self._group, why))
        if symbol != self._leave_out:
            setattr(owner, name, value)

    def real(self, symbol: str, why: str) -> Any:
        """Returns the current value of a symbol, for its replacement to call."""
        owner, name = _owner(symbol, why)
        found = getattr(owner, name, MISSING)
        if found is MISSING:
            raise _missing(symbol, why)
        return found


def _owner(symbol: str, why: str) -> tuple[Any, str]:
    module, _, path = symbol.partition(":")
    *parts, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for part in parts:
            owner = getattr(owner, part)
    except (ImportError, AttributeError):
        raise _missing(symbol, why) from None
    return owner, name


def _missing(symbol: str, why: str) -> DryRunBroken:
    return DryRunBroken(
        f"torch {torch_version()} has no {symbol.replace(':', '.')}, which the dry run patches "
        f"({why})"
    )
