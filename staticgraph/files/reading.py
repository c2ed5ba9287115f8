"""JSON files that this library wrote, read back: what they should hold, or one error.

A plan, a report or a model of memory may have been cut short, edited, or be another file
altogether. Each reader knows what it needs; here whatever goes wrong while it looks for that is
made one error, which names the file and what it should have been.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from staticgraph.files import document

T = TypeVar("T")

# What looking for a key, a number or a list raises where something else stands.
NOT_THERE = (
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    ValueError,
    ArithmeticError,
    RecursionError,
)


def read_document(
    path: str | Path,
    what: str,
    build: Callable[[dict[str, Any]], T],
    error: type[ValueError] = ValueError,
) -> T:
    """What ``build`` makes of the JSON object in a file.

    Args:
        path: the file.
        what: it should hold, for the message: ``a plan``.
        build: takes the object; raises ValueError with words of its own where it knows better.
        error: the type to raise.

    Raises:
        FileNotFoundError: no such file.
        ValueError: (or ``error``) it holds something else; the message names the file.
    """
    try:
        values = document.read(path)
    except NOT_THERE as failure:
        raise error(f"{path}: not {what}: no readable JSON ({failure})") from failure
    if not isinstance(values, dict):
        raise error(f"{path}: not {what}: a JSON {_kind(values)} where an object should be")
    try:
        return build(document.check(values))
    except NOT_THERE as failure:
        said = str(failure) if type(failure) in (ValueError, error) else None
        raise error(f"{path}: {said or f'not {what}: {missing(failure)}'}") from failure


def missing(failure: Exception) -> str:
    """What reading a document stumbled over, in words."""
    if isinstance(failure, KeyError):
        return f"it lacks {failure}"
    return f"incomplete, or another thing in a place ({failure})"


def _kind(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
