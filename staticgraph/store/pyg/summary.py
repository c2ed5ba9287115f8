"""A one-line summary of reading a data set: fields, host objects, dropped attributes, transform."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.random_states import kept_random_states
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many


def summary_of(store: GraphColumns, dropped: Mapping[str, str], frozen: str | None) -> str:
    """Returns ``name: 3 graphs, 1.2 MiB: x float32 [9] per node, ...; dropped: ...``.

    Args:
        store: the new store.
        dropped: attribute -> why it was dropped.
        frozen: the name of the transform that was applied once.
    """
    fields = ", ".join(f"{field.name} {field.describe()}" for field in store.schema)
    parts = [
        f"{how_many(len(store), 'graph')}, {human_bytes(store.nbytes)}: {fields or 'no field'}"
    ]
    if store.objects:
        parts.append(f"on the host: {', '.join(store.objects)}")
    if dropped:
        parts.append("dropped: " + ", ".join(f"{name} ({why})" for name, why in dropped.items()))
    if frozen:
        parts.append(f"applied once: {frozen}")
    return f"{store.name}: {'; '.join(parts)}"


def transform_of(dataset: Any) -> Any:
    """Returns the transform of a data set, or of the one that it is a subset of; or None."""
    for _ in range(8):
        if (found := getattr(dataset, "transform", None)) is not None:
            return found
        dataset = getattr(dataset, "dataset", None)
    return None


def warn_of_frozen_draws(dataset: Any, transform: Any) -> None:
    """Warns if a data set's transform is random, since a store keeps one draw of it for good.

    It is if two reads of the first graph differ. The random states are restored.
    """
    try:
        with kept_random_states():
            first, second = (dict(dataset[0].to_dict()) for _ in range(2))
    except Exception:  # no first graph: reading the data set will raise the proper error
        return
    drawn = [name for name in first if not _equal(first[name], second.get(name))]
    if drawn:
        warnings.warn(
            f"the data set's transform {_name(transform)} draws {', '.join(drawn)} again each time "
            "a graph is read; the store keeps one draw. For a new one every epoch take it off the "
            "data set and pass StaticLoader(transform=...), which runs on each batch",
            stacklevel=4,
        )


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return not isinstance(one, Tensor) and not isinstance(other, Tensor)
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _name(transform: Any) -> str:
    return getattr(transform, "__name__", None) or repr(transform).split("\n")[0]
