"""The graphs of a padded batch as plain PyG batches them, for a model that is called either way.

A model written for a :class:`StaticBatch` may ask for its masks; here all rows are real, so all are
True. What else a static batch knows and PyG's does not (real counts on the device) is not here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.schema import Schema
from staticgraph.steps.losses import Loss, LossTerms


class PlainBatch:
    """A PyG ``Batch`` that can be asked for a model's arguments as a StaticBatch can."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def fresh(self) -> PlainBatch:
        """The same, on which a model may set attributes."""
        return PlainBatch(self._data.clone())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_data":
            object.__setattr__(self, name, value)
        else:
            setattr(self._data, name, value)

    def __getitem__(self, name: Any) -> Any:
        return self._data[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._data[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def argument(self, name: str) -> Any:
        """What a model's parameter of this name gets; None if there is nothing for it."""
        found = getattr(self._data, name, None)
        if found is None and hasattr(self._data, "node_types"):  # x: one of each type
            found = getattr(self._data, f"{name}_dict", None)
        return found


def plain_batch(batch: StaticBatch) -> PlainBatch:
    """The real graphs of a batch, without padding, on its device."""
    graphs: list[Any] = list(batch.to_data_list())
    data: Any = Batch.from_data_list(graphs, follow_batch=_followed(batch.layout.schema))
    data = data.to(str(batch.device))
    if not batch.layout.schema.hetero:
        for level, rows in (
            ("node", data.num_nodes),
            ("edge", data.num_edges),
            ("graph", data.num_graphs),
        ):
            if f"{level}_mask" not in data:
                data[f"{level}_mask"] = torch.ones(rows, dtype=torch.bool, device=batch.device)
    return PlainBatch(data)


def _followed(schema: Schema) -> list[str]:
    """The fields whose ``x_batch`` and ``x_ptr`` a static batch has beside those of nodes."""
    return [] if schema.hetero else [field.name for field in schema]


def measurable(batch: StaticBatch) -> bool:
    """Whether the plain mean of a loss over a batch's rows is known: no label can be missing."""
    return not any(field.has_nan for field in batch.layout.schema)


def plain_loss(loss: Loss | None, out: Any, data: PlainBatch) -> Tensor:
    """The mean of a loss over all rows of an unpadded batch."""
    assert loss is not None
    asked: Any = data
    return LossTerms.of(loss(out, asked)).mean()
