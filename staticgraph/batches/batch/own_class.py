"""A padded batch as an object of the user's own class.

A model that was written for another library reads its own batch class. So the padded tensors can be
put into a copy of one of its objects (:func:`built_like`), under that class's names; the copy
remembers which :class:`staticgraph.StaticBatch` its tensors belong to (:func:`static_of`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import Schema

_STATIC = "_staticgraph_static"


def template_of(example: Any, schema: Schema) -> Any:
    """Returns a copy of a batch without its tensors, so that none of them is passed on unpadded."""
    template = copy.copy(example)
    if isinstance(example, Mapping):
        for name in [name for name, value in example.items() if isinstance(value, Tensor)]:
            del template[name]
        return template
    for name, value in attributes_of(example):
        if isinstance(value, Tensor):
            _set(template, name, None)
    for path, _ in schema.names:
        if "." in path:
            head, tail = path.split(".", 1)
            inner = Schema((), names=((tail, ""),))
            _set(template, head, template_of(_get(example, head), inner))
    return template


def built_like(batch: StaticBatch, marked: bool = False) -> Any:
    """Returns a batch's tensors in an object of the class that its schema was given as ``like``.

    Args:
        batch: its schema has names.
        marked: whether :func:`static_of` is to work on the result; not inside a compiled step.
    """
    schema, tensors = batch.layout.schema, batch.tensors()
    like = copy.copy(schema.like)
    copied: set[str] = set()
    for path, array in schema.names:
        target, names = like, path.split(".")
        for depth, name in enumerate(names[:-1]):
            inner, prefix = _get(target, name), ".".join(names[: depth + 1])
            if prefix not in copied:
                inner = copy.copy(inner)
                _set(target, name, inner)
                copied.add(prefix)
            target = inner
        _set(target, names[-1], tensors[array])
        if marked:
            setattr(tensors[array], _STATIC, batch)
    for name, level in schema.sizes:
        _set(like, name, batch.capacity.rows(level))
    return like


def static_of(value: Any) -> StaticBatch | None:
    """Returns the batch whose tensors an object of the user's class holds; None for others."""
    if isinstance(value, StaticBatch):
        return value
    values = value.values() if isinstance(value, Mapping) else [v for _, v in attributes_of(value)]
    for each in values:
        if isinstance(each, Tensor) and (static := getattr(each, _STATIC, None)) is not None:
            return static
    for each in values:
        static = static_of(each) if hasattr(each, "__dataclass_fields__") else None
        if static is not None:
            return static
    return None


def unpad(output: Any, batch: Any) -> Any:
    """Cuts a model's output over a padded batch into one piece per real graph.

    Args:
        output: tensors ``[G, ...]``, ``[N, ...]``, ``[E, ...]`` or of the rows of an axis; tuples,
            lists and dicts of these.
        batch: a :class:`StaticBatch`, or what a padder with ``like=`` returned.

    Raises:
        TypeError: the batch is neither.
        ValueError: a tensor without rows of this batch.
    """
    static = static_of(batch)
    if static is None:
        raise TypeError(
            f"a {type(batch).__name__} is no padded batch: give what sg.Padder(plan)(batch) gave"
        )
    return static.unpad(output)


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of an object, those in slots included."""
    slots: list[str] = []
    for kind in type(value).__mro__:
        listed = getattr(kind, "__slots__", ())
        slots += [listed] if isinstance(listed, str) else listed
    names = [*getattr(value, "__dict__", {}), *(name for name in slots if hasattr(value, name))]
    return ((name, getattr(value, name)) for name in names if name != "__weakref__")


def _get(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _set(target: Any, name: str, value: Any) -> None:
    if isinstance(target, Mapping):
        target[name] = value  # pyright: ignore[reportIndexIssue]
    else:
        try:
            setattr(target, name, value)
        except AttributeError:  # a frozen dataclass
            object.__setattr__(target, name, value)
