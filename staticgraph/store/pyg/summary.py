"""What reading a data set kept, put beside, dropped and froze, in one line."""

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
    """``name: 3 graphs, 1.2 MiB: x float32 [9] per node, ...; on the host: smiles; dropped: ...``.

    Args:
        store: what was made.
        dropped: attributes that were left out, each with why.
        frozen: the transform that was applied once.
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
    """The transform of a data set, or of the one that it is a part of; None where there is none."""
    for _ in range(8):
        if (found := getattr(dataset, "transform", None)) is not None:
            return found
        dataset = getattr(dataset, "dataset", None)
    return None


def warn_of_frozen_draws(dataset: Any, transform: Any) -> None:
    """Warns where a data set's transform gives another first graph each time: a store keeps one
    draw of it for good. The random states stay as they were."""
    try:
        with kept_random_states():
            first, second = (dict(dataset[0].to_dict()) for _ in range(2))
    except Exception:  # whatever it is that has no first graph: reading it says so
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
