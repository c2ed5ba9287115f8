"""A data set on a device in a compact, exact encoding, so that only graph ids cross the bus.

Problem: a recorded step waits for its batch, and in every epoch the host copies and the bus
transfers the same bytes in another order. Idea: a data set of small graphs in compact dtypes is
small (OGB's molhiv takes some 25 MB), so it is moved to the device once, and a batch is then
specified by the indices of its graphs alone.

The encoding differs from :class:`GraphStore` only in dtypes: integers, including offsets, take the
narrowest signed type or uint8, and row pointers count within their graph. Invariant: a batch
collated from it has the bits of one from the host. Whether the data set fits its budget is decided
before anything is moved.

This module does not collate (:mod:`staticgraph.kernels.collate`) or choose batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from staticgraph.errors import BudgetExceeded
from staticgraph.memory.budget import MemoryBudget
from staticgraph.schema import POINTERS, Field, Schema, dtype_name
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array, narrowest, sort_by_node
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.table import table

# The arrays of a store that are not fields, in the order in which collation expects them.
STRUCTURE = ("node_offsets", "edge_offsets", "edge_src", "edge_dst")
# Signed types and uint8: torch and Triton support arithmetic on these everywhere.
NARROW = (np.uint8, np.int8, np.int16, np.int32, np.int64)
UNSIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}


@dataclass(frozen=True, eq=False)
class DeviceStore:
    """A data set on a device, as returned by :meth:`GraphStore.to`.

    A :class:`StaticLoader` accepts it in place of a store.

    Attributes:
        host: the store that it was made from; sizes, splits and single graphs are read there.
        structure: offsets ``[n + 1]``; sources and destinations ``[sum e]``, numbered within their
            graph; and with pointers, unless edges keep their order, ``row_ptr`` and ``col_ptr``
            ``[sum n]`` and ``transpose`` ``[sum e]``, also numbered within their graph.
        columns: the fields, ``[rows, scalars of a row]``.
    """

    host: GraphColumns
    structure: Mapping[str, Tensor]
    columns: Mapping[str, Tensor]

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.structure["edge_src"].device

    @property
    def pointers(self) -> bool:
        """Whether it holds the arrays for the row pointers of batches."""
        return "row_ptr" in self.structure

    @property
    def schema(self) -> Schema:
        """The fields and the dtypes that a model sees."""
        return self.host.schema

    @property
    def sizes(self) -> IntArray:
        """``[n, 2]`` int64 on the host: nodes and edges of each graph."""
        return self.host.sizes

    @property
    def histogram(self) -> SizeHistogram:
        """How many graphs have each size."""
        return self.host.histogram

    @property
    def splits(self) -> Mapping[str, IntArray]:
        """Named lists of graph indices."""
        return self.host.splits

    @property
    def name(self) -> str:
        """The name used in error messages."""
        return self.host.name

    def __len__(self) -> int:
        return len(self.host)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        tensors = (*self.structure.values(), *self.columns.values())
        return sum(tensor.nbytes for tensor in tensors)

    def __repr__(self) -> str:
        return f"DeviceStore({self.host!r} as {human_bytes(self.nbytes)} on {self.device})"


def move(
    store: GraphColumns,
    device: str | torch.device,
    *,
    pointers: bool = True,
    budget: MemoryBudget | None = None,
) -> DeviceStore:
    """Moves a store to a device; see :meth:`GraphStore.to`.

    Raises:
        BudgetExceeded: if it takes more than the budget leaves; nothing was moved.
        ValueError: if the store has axes or index fields of its own, or the device does not exist.
    """
    device = require_there(device)
    structure, columns = encoded(store, pointers)
    budget = MemoryBudget.of_device(device) if budget is None else budget
    _check_budget(store, device, _sizes(store, structure, columns), budget)
    return DeviceStore(
        store,
        {name: tensor.to(device) for name, tensor in structure.items()},
        {name: tensor.to(device) for name, tensor in columns.items()},
    )


def encoded(store: GraphColumns, pointers: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns structure and columns in their device encoding, still on the host.

    Raises:
        ValueError: if the store has axes or index fields of its own.
    """
    if odd := odd_rows(store):
        raise ValueError(
            f"{store.name} has rows or indices of its own ({', '.join(odd)}); a device collates "
            "nodes, edges and graphs of one kind: leave it on the host, "
            "StaticLoader(store, plan, device=...)"
        )
    store.verify()
    pointers &= store.schema.has_pointers
    structure = {name: _narrow(getattr(store, name)) for name in STRUCTURE}
    if pointers:
        first = np.repeat(store.edge_offsets[:-1], np.diff(store.node_offsets))
        structure["row_ptr"] = _narrow(store.row_ptr[:-1] - first)
        _, by_source = sort_by_node(store.edge_src, store.node_offsets, store.edge_offsets)
        structure["col_ptr"] = _narrow(by_source[:-1] - first)
        structure["transpose"] = _narrow(store.transpose)
    columns = {field.name: _column(field, store.columns[field.name]) for field in store.schema}
    return structure, columns


def odd_rows(store: GraphColumns) -> list[str]:
    """Returns the names of axes and index fields, which a device does not collate."""
    axes = [axis.name for axis in store.schema.axes]
    return axes + [field.name for field in store.schema if field.is_index]


def _column(field: Field, column: Array) -> Tensor:
    # A batch copies at once a row's scalars, or all of a graph's rows.
    each = field.rows if field.level == "graph" else 1
    rows = column.reshape(len(column) // each, field.width * each)
    if column.dtype == field.dtype and column.dtype.name in UNSIGNED:
        return _at_least_one(rows.view(UNSIGNED[field.dtype]))
    return _narrow(rows) if column.dtype.kind in "iu" else _at_least_one(rows)


def _narrow(array: Array) -> Tensor:
    """Returns integers in the narrowest dtype of :data:`NARROW`, with at least one row."""
    dtype = narrowest(array, NARROW)
    # uint64 values beyond int64: the same bits
    return _at_least_one(array.astype(dtype, copy=False) if dtype else array.view(np.int64))


def _at_least_one(array: Array) -> Tensor:
    """Returns a tensor with at least one row, since even a masked lookup addresses a row."""
    if not len(array):
        array = np.zeros((1, *array.shape[1:]), array.dtype)
    # torch warns about read-only arrays (mapped files), so these are copied.
    return torch.from_numpy(np.require(array, requirements=("C", "W")))


# ---------------------------------------------------------------------- the device


def require_there(device: str | torch.device) -> torch.device:
    """Returns the device.

    Raises:
        ValueError: if torch knows no such device, or if it is a CUDA device and torch sees none, or
            its index is out of range.
    """
    try:
        device = torch.device(device)
    except RuntimeError:
        raise ValueError(
            f"device={device!r}: torch knows no such device; give 'cpu', 'cuda' or 'cuda:1'"
        ) from None
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f", and torch {torch.__version__} is built without"
        raise ValueError(
            f"device={str(device)!r}: torch sees no CUDA device{build}: leave device= out, or give "
            "'cuda' if torch.cuda.is_available() else 'cpu'"
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r}: torch sees {torch.cuda.device_count()} CUDA devices, the "
            "first of which is 'cuda:0'"
        )
    return device


# ---------------------------------------------------------------------- the budget


def _sizes(
    store: GraphColumns, structure: Mapping[str, Tensor], columns: Mapping[str, Tensor]
) -> list[tuple[str, str, int]]:
    """Returns the name of every array, its dtype with that which it stands for, and its bytes."""
    sizes = [(name, dtype_name(tensor), tensor.nbytes) for name, tensor in structure.items()]
    for name, tensor in columns.items():
        stored_as, dtype = dtype_name(tensor), store.schema[name].dtype
        form = f"{stored_as} for {dtype}" if stored_as != dtype else stored_as
        sizes.append((name, form, tensor.nbytes))
    return sizes


def _check_budget(
    store: GraphColumns,
    device: torch.device,
    sizes: Sequence[tuple[str, str, int]],
    budget: MemoryBudget,
) -> None:
    total = sum(nbytes for _, _, nbytes in sizes)
    floor = total + budget.data_set_bytes
    if floor <= budget.max_bytes:
        return
    already = (
        f", {human_bytes(budget.data_set_bytes)} of it taken by other data"
        if budget.data_set_bytes
        else ""
    )
    pointers = sum(nbytes for name, _, nbytes in sizes if name in POINTERS)
    without = f", do without row pointers (pointers=False, {human_bytes(pointers)} less)"
    rows = [
        (name, form, human_bytes(nbytes)) for name, form, nbytes in [*sizes, ("total", "", total)]
    ]
    raise BudgetExceeded(
        f"{store.name} takes {human_bytes(total)} on {device}, the cap is "
        f"{human_bytes(budget.max_bytes)} ({budget.device}){already}:\n"
        f"{table(('array', 'kept as', 'bytes'), rows)}\n"
        f"Either raise the cap to {floor:,} bytes{without if pointers else ''}, or leave it on the "
        "host: StaticLoader(store, plan, device=...) fills batches there",
        None,
        floor,
    )
