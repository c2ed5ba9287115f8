"""A graph, or a batch without padding, where PyG is not installed.

The library itself needs of PyG's ``Data`` only that tensors are read and set as attributes and as
items. Where PyG is installed, its own classes are made instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.internals.hooks import has_pyg
from staticgraph.schema import Schema
from staticgraph.store.indices import counted


class Record:
    """Tensors under names, as attributes and as items.

    Iterating yields names with values, as PyG's ``Data`` does; a missing name is an AttributeError
    as an attribute and a KeyError as an item.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        vars(self)[name] = value

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(vars(self).items())

    def keys(self) -> list[str]:
        """Returns the names."""
        return list(vars(self))

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a name, or ``default``."""
        return vars(self).get(name, default)

    def clone(self) -> Record:
        """Returns a copy with tensors of its own."""
        return self._changed(Tensor.clone)

    def to(self, device: torch.device | str) -> Record:
        """Returns the same values, with tensors on a device."""
        return self._changed(lambda value: value.to(device))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Record:
        return Record(**{n: change(v) if isinstance(v, Tensor) else v for n, v in self})

    def __repr__(self) -> str:
        shapes = (f"{n}={list(v.shape) if isinstance(v, Tensor) else v}" for n, v in self)
        return f"Record({', '.join(shapes)})"


def graph_of(**values: Any) -> Any:
    """Returns a PyG ``Data`` of these values; where PyG is not installed, a :class:`Record`."""
    if not has_pyg():
        return Record(**values)
    from torch_geometric.data import Data

    return Data(**values)


def graph_in(schema: Schema, values: dict[str, Any], rows: Mapping[str, int]) -> Any:
    """Returns one graph of a schema as PyG's ``Data`` or ``HeteroData``; without PyG as a
    :class:`Record`, the fields of a type under ``type.field``. ``values`` are its tensors by field,
    and ``rows`` its number of rows by level."""
    if not has_pyg():
        nodes = {} if schema.hetero else {"num_nodes": rows["node"]}
        return Record(**values, **nodes)
    from staticgraph.store.pyg.assembled import assembled, assembled_typed

    return (assembled_typed if schema.hetero else assembled)(schema, values, rows)


def graph_at(store: Any, graph: int) -> Any:
    """Returns a graph, as it went in, of a :class:`staticgraph.store.graph_columns.GraphColumns` in
    one folder, or in memory."""
    schema: Schema = store.schema
    sizes = store.narrow_sizes[graph].tolist()
    rows: dict[str, int] = dict(zip(("node", "edge", *store.offsets), sizes, strict=True))
    moved = {
        level: origin
        for level in ("edge", *(axis.name for axis in schema.edge_axes))
        if (origin := store.origin_of(graph, level)) is not None
    }
    back = {level: np.argsort(origin) for level, origin in moved.items()}
    values: dict[str, Any] = {}
    if schema.one_kind:
        here = slice(store.edge_offsets[graph], store.edge_offsets[graph + 1])
        pair = np.stack([store.edge_src[here], store.edge_dst[here]]).astype(np.int64)
        values["edge_index"] = torch.from_numpy(pair[:, back["edge"]] if back else pair)
    for field in schema:
        value = store.columns[field.name][store.rows_of(field, graph)].astype(field.dtype)
        for place, level in counted(field):
            if level in moved:  # edges are numbered as they were before they were sorted
                scalars = value.reshape(-1, field.width)
                scalars[:, place] = moved[level][scalars[:, place]]
        if field.level in back:
            value = value[back[field.level]]
        # Rows are where ``__cat_dim__`` puts them in PyG's tensor.
        if field.cat_dim is None:
            value = value.reshape(field.shape)
        elif field.cat_dim:
            value = np.ascontiguousarray(np.moveaxis(value, 0, field.cat_dim))
        values[field.name] = torch.from_numpy(value)
    data = graph_in(schema, values, rows)
    for name, column in store.objects.items():
        setattr(data, name, column.read_object(graph))
    return data
