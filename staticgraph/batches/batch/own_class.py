"""A padded batch as an object of the user's own class.

A model that was written for another library reads its own batch class. So the padded tensors can be
put into a copy of one of its objects (:func:`built_like`), under that class's names; the copy
remembers which :class:`staticgraph.StaticBatch` its tensors belong to (:func:`static_of`).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import copied
from staticgraph.schema import Schema, attributes_of, is_read_by_key

_STATIC = "_staticgraph_static"


def template_of(example: Any, schema: Schema) -> Any:
    """Returns a copy of a batch without its tensors, so that none of them is passed on unpadded."""
    heads = {path.split(".", 1)[0] for path, _ in schema.names if "." in path}
    nothing = {name: None for name, value in attributes_of(example) if isinstance(value, Tensor)}
    for head in heads:
        tails = [path.split(".", 1)[1] for path, _ in schema.names if path.startswith(f"{head}.")]
        inner = Schema((), names=tuple((tail, "") for tail in tails))
        nothing[head] = template_of(_get(example, head), inner)
    return _changed(example, nothing)


def built_like(batch: StaticBatch, marked: bool = False) -> Any:
    """Returns a batch's tensors in an object of the class that its schema was given as ``like``.

    Args:
        batch: its schema has names.
        marked: whether :func:`static_of` is to work on the result; not inside a compiled step.
    """
    schema, tensors = batch.layout.schema, batch.tensors()
    values: dict[str, Any] = {path: tensors[array] for path, array in schema.names}
    if schema.dense:
        values.update(_laid_out(batch, values))
    if marked:
        for tensor in values.values():
            setattr(tensor, _STATIC, batch)
    values.update((name, batch.capacity.rows(level)) for name, level in schema.sizes)
    return _changed(schema.like, values)


def _laid_out(batch: StaticBatch, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the rows of nodes as ``[G, M, ...]``, ``M`` the nodes of the bucket's largest graph,
    with the mask; places without a node hold the field's padding."""
    tensors, schema, names = batch.tensors(), batch.layout.schema, dict(batch.layout.schema.names)
    graphs, most = batch.capacity.graphs, batch.capacity.max_graph_nodes
    owner, real = tensors["batch"], tensors["node_mask"]
    place = owner * most + torch.arange(len(owner), device=owner.device) - tensors["ptr"][owner]
    place = torch.where(real, place, graphs * most)  # padding goes to a row that is cut off
    blocks = {}
    for path in schema.dense:
        rows, pad = (real, (0,)) if path == schema.dense[0] else (values[path], ())
        pad = pad or schema[names[path]].pad or (0,) * max(1, rows[0].numel())
        row = torch.tensor(pad, dtype=rows.dtype, device=owner.device).view(rows.shape[1:])
        block = row.expand(graphs * most + 1, *row.shape).index_copy(0, place, rows)
        blocks[path] = block[:-1].view(graphs, most, *row.shape)
    return blocks


def static_of(value: Any) -> StaticBatch | None:
    """Returns the batch whose tensors an object of the user's class holds; None for others."""
    if isinstance(value, StaticBatch):
        return value
    for _, each in attributes_of(value):
        static = getattr(each, _STATIC, None) if isinstance(each, Tensor) else None
        if (
            static is None
            and not isinstance(each, Tensor)
            and hasattr(each, "__dataclass_fields__")
        ):
            static = static_of(each)
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


def _get(value: Any, name: str) -> Any:
    return value[name] if is_read_by_key(value) else getattr(value, name)


def _changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """Returns a copy of an object with other values under some names; dots lead inside."""
    values: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for path, new in changes.items():
        head, _, tail = path.partition(".")
        if tail:
            inside.setdefault(head, {})[tail] = new
        else:
            values[head] = new
    for head, parts in inside.items():
        values[head] = _changed(_get(value, head), parts)
    if isinstance(value, tuple):
        return value._replace(**values)  # pyright: ignore[reportAttributeAccessIssue]
    if type(value) is dict:
        changed = dict(value)  # a trace knows no other copy of one
    elif type(value) is SimpleNamespace:  # nor that of one of C's types
        changed, values = copied(value), vars(value) | values
    elif dataclasses.is_dataclass(value):  # nor that of slots
        changed = copied(value)
        names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        values = {name: getattr(value, name) for name in names} | values
    elif hasattr(type(value), "__copy__"):
        changed = value.__copy__()  # torch 2.11 traces no copy.copy
    else:
        changed = copy.copy(value)
    for name, new in values.items():
        if is_read_by_key(changed):
            changed[name] = new
        elif getattr(getattr(changed, "__dataclass_params__", None), "frozen", False):
            object.__setattr__(changed, name, new)
        else:
            setattr(changed, name, new)
    return changed
