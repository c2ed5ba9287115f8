"""A batch of fixed shape as code outside the model sees it: real rows alone.

A training step written by somebody else takes means, metrics and targets of whatever it reads. So
it is given this: the attribute names and shapes of PyG's batch, without padded rows, as views of
the static batch's memory. Where the model is called, the static batch is recovered
(:attr:`RealBatch.static`), and each view's padded array with it, by :func:`origin_of`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from staticgraph.batches.batch.derived_attributes import TypeView, array_name, axis_of
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.schema import DICT_SUFFIX, OPTIONAL, Level
from staticgraph.text.how_many import how_many

_SIZES: dict[str, Level] = {
    "num_nodes": "node",
    "num_edges": "edge",
    "num_graphs": "graph",
    "batch_size": "graph",
}
_LEVELS: dict[str, Level] = {"batch": "node", "graph_ids": "graph", "edge_index": "edge"}
_ORIGIN = "_staticgraph_origin"


class Origin(NamedTuple):
    """Where real rows come from.

    Attributes:
        batch: the batch that they belong to.
        name: the name of the array; empty for what a model made.
        full: the tensor with padding.
    """

    batch: RealBatch
    name: str
    full: Tensor


class RowsUnknown(ValueError):
    """A tensor set on a batch does not have the batch's rows, so that no padding can be added."""


class RealCount(int):
    """A number of real rows, which becomes the bucket's number when a model receives it."""

    name: str
    batch: weakref.ref[RealBatch]


class RealBatch:
    """The real rows of a batch.

    Args:
        static: a batch whose real counts are known.

    Attributes as of PyG's batch: the fields, ``edge_index``, ``batch``, ``ptr``, ``num_graphs``; if
    nodes have types, ``x_dict`` and similar. What is set on it is what the model receives.
    Iterating yields ``graph_ids``, so that code that takes the first tensor's length as the batch
    size finds the number of real graphs.

    Raises:
        ValueError: the real counts of the batch are not known.
    """

    _stands_in_for_batch = True

    __slots__ = ("__weakref__", "_made", "_set", "static")

    def __init__(self, static: StaticBatch) -> None:
        if static.real is None:
            raise ValueError("the real counts of this batch are not known: take it from a loader")
        object.__setattr__(self, "static", static)
        object.__setattr__(self, "_made", {})
        object.__setattr__(self, "_set", {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._set:
            return self._set[name]
        if name not in self._made:
            self._made[name] = self._read_value(name)
        return self._made[name]

    def _read_value(self, name: str) -> Any:
        if name in _SIZES:
            count = RealCount(self.static.real_counts.of(_SIZES[name]))
            count.name, count.batch = name, weakref.ref(self)
            return count
        schema = self.static.layout.schema
        if name.endswith(DICT_SUFFIX) and schema.hetero:
            return {
                axis.key: getattr(self, array)
                for axis in schema.axes
                if (array := array_name(axis, name.removesuffix(DICT_SUFFIX)))
                in self.static.tensors()
            }
        value = getattr(self.static, name)
        return self.real(value, *self._cut(name), name) if isinstance(value, Tensor) else value

    def _cut(self, name: str) -> tuple[int | None, int]:
        """Returns how many rows of an array are real, None for all, and along which dimension."""
        counts, schema = self.static.real_counts, self.static.layout.schema
        if name in schema:
            field = schema[name]
            return counts.of(field.level) * field.rows, field.cat_dim or 0
        if name in _LEVELS:
            return counts.of(_LEVELS[name]), 1 if name == "edge_index" else 0
        if name == "ptr":
            return counts.graphs + 1, 0
        for end, more in (("_mask", 0), ("_batch", 0), ("_ptr", 1)):
            level = name.removesuffix(end)
            if end in name and level in (*self.static.levels,):
                return (counts.graphs if more else counts.of(level)) + more, 0
        return None, 0

    def real(self, full: Tensor, rows: int | None, dim: int = 0, name: str = "") -> Tensor:
        """Returns the first rows of a padded tensor, noted for :func:`origin_of`."""
        if rows is None:
            return full
        part = full.narrow(dim, 0, rows)
        setattr(part, _ORIGIN, (weakref.ref(self), name, full))
        return part

    def padded(self, value: Tensor) -> Tensor | None:
        """Returns a tensor of real rows with rows of zeros added for the padding.

        None if its number of rows is that of several levels, or of none.
        """
        counts = self.static.real_counts
        levels = [level for level in self.static.levels if counts.of(level) == len(value)]
        if len(levels) != 1:
            return None
        more = self.static.capacity.rows(levels[0]) - len(value)
        return pad(value, (0, 0) * (value.dim() - 1) + (0, more))

    def whole(self) -> StaticBatch:
        """Returns the batch with padding, and with what was set on this one.

        Raises:
            RowsUnknown: a tensor was set whose rows are of no level, or of several; or other edges
                were set.
        """
        view = self.static.replace()
        for name, value in self._set.items():
            origin = origin_of(value)
            full = origin.full if origin else value
            if origin is None and isinstance(value, Tensor) and value.dim():
                full = self._padded_as(name, value)
                if full is None:
                    raise RowsUnknown(
                        f"batch.{name} was set to a tensor of shape {list(value.shape)}, of which "
                        "it cannot be told which rows of the batch it has: make it inside of the "
                        "model's forward, or make it a field of the store"
                    )
            setattr(view, name, full)
        return view

    def _padded_as(self, name: str, value: Tensor) -> Tensor | None:
        """Returns what was set under a name, with rows of padding.

        None if its rows cannot be told, and for edges and graphs of nodes, which padding needs as
        the bucket has them.
        """
        schema = self.static.layout.schema
        if name in schema:
            field = schema[name]
            if field.rows != 1 or field.cat_dim:
                return self.padded(value)
            if len(value) != self.static.real_counts.of(field.level):
                return None
            more = self.static.capacity.rows(field.level) - len(value)
            return pad(value, (0, 0) * (value.dim() - 1) + (0, more))
        return None if name in self.static else self.padded(value)

    def __setattr__(self, name: str, value: Any) -> None:
        self._set[name] = value
        for known in [known for known in self._made if known.endswith(DICT_SUFFIX)]:
            del self._made[known]

    def __getitem__(self, name: Any) -> Any:
        schema = self.static.layout.schema
        axis = axis_of(schema, name) if schema.hetero and name not in self.static else None
        if name in OPTIONAL and name not in self:
            raise KeyError(name)
        return getattr(self, name) if axis is None else RealView(self, axis)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._set or name in self.static

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the attribute of this name, or ``default``, as in PyG."""
        value = getattr(self, name, None)
        return default if value is None else value

    def keys(self) -> list[str]:
        """Returns the names of the tensors, and of what was set."""
        return list(dict.fromkeys([*self.static.keys(), *self._set]))

    def to(self, device: Any, **_: Any) -> RealBatch:
        """Returns the batch on another device; itself if it is already there."""
        moved = self.static.to(device)
        return self if moved is self.static else self._over(moved, lambda value: value.to(device))

    def cpu(self) -> RealBatch:
        """Returns the batch on the host; itself if it is already there."""
        return self.to("cpu")

    def cuda(self, device: int | str | torch.device | None = None) -> RealBatch:
        """Returns the batch on a CUDA device; on the current one if None."""
        return self.to(
            torch.device("cuda", device) if isinstance(device, int) else device or "cuda"
        )

    def clone(self) -> RealBatch:
        """Returns a copy with its own memory."""
        return self._over(self.static.clone(), lambda value: value.clone())

    def __copy__(self) -> RealBatch:
        return self._over(self.static, lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> RealBatch:
        return self.clone()

    def _over(self, static: StaticBatch, as_there: Callable[[Tensor], Tensor]) -> RealBatch:
        """Returns a batch over another static batch, with what was set on this one."""
        other = RealBatch(static)
        for name, value in self._set.items():
            origin = origin_of(value)
            if origin is not None and origin.name and origin.batch.static is self.static:
                value = other._read_value(origin.name)
            elif isinstance(value, Tensor):
                value = as_there(value)
            setattr(other, name, value)
        return other

    def to_data_list(self) -> list[Any]:
        """Returns the graphs as PyG ``Data`` or ``HeteroData``."""
        return self.static.to_data_list()

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self.graph_ids])

    def __repr__(self) -> str:
        return f"RealBatch({how_many(self.num_graphs, 'graph')} of {self.static!r})"


class RealView(TypeView):
    """The real rows of one type, as in PyG's storages."""

    __slots__ = ()

    def _rows(self) -> int:
        return self._batch.static.real_counts.of(self._axis.name)

    def _array(self, name: str) -> Any:
        return getattr(self._batch, array_name(self._axis, name), None)


def origin_of(value: object) -> Origin | None:
    """Returns the batch and padded tensor whose real rows a value is; None for anything else."""
    held, name, full = getattr(value, _ORIGIN, (None, "", None))
    batch = held() if held is not None else None
    return None if batch is None or full is None else Origin(batch, name, full)
