"""The arguments of collation: a store on the device and the arrays of a slot."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.kernels.collate.arguments import LINE, Arguments
from staticgraph.schema import COUNTS, LEVELS, POINTERS, Field
from staticgraph.store.on_device import STRUCTURE, UNSIGNED, DeviceStore

# The arrays that every batch has in addition to its fields, in the operator's order.
OUTPUTS = (
    "edge_index",
    "batch",
    "ptr",
    "graph_ids",
    COUNTS,
    "node_mask",
    "edge_mask",
    "graph_mask",
)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def collate_arguments(
    store: DeviceStore, layout: SlotLayout, tensors: Mapping[str, Tensor]
) -> Arguments:
    """Returns the arguments of collation for a store and the arrays of a slot.

    If a column has the field's own dtype, both are passed as integers of that size, so that every
    bit is copied, even of a NaN.

    Raises:
        ValueError: row pointers are wanted, and the store was moved to the device without them.
    """
    if layout.pointers and not store.pointers:
        raise ValueError(
            f"batches with row pointers are wanted, but {store.name} was moved to "
            f"{store.device} without: store.to(device, pointers=True)"
        )
    more = POINTERS if layout.pointers else ()
    fields = [field for field, _ in layout.paddings]
    paddings = [padding for _, padding in layout.paddings]
    pairs = [
        _pair(field, store.columns[field.name], tensors[field.name], padding == LINE)
        for field, padding in layout.paddings
    ]
    return Arguments(
        structure=[store.structure[name] for name in STRUCTURE + more],
        columns=[column for column, _ in pairs],
        levels=[LEVELS.index(field.level) for field in fields],
        widths=[target.size(1) for _, target in pairs],
        paddings=paddings,
        apart=layout.apart,
        paired=layout.schema.keep_order,
        out=[_integers(tensors[name]) for name in OUTPUTS + more] + [target for _, target in pairs],
    )


def _pair(field: Field, values: Tensor, target: Tensor, line: bool) -> tuple[Tensor, Tensor]:
    """Returns a column and its target ``[rows, width]``; the positions (``line``) stay float."""
    same = values.dtype == target.dtype
    if same and not line:
        values = _integers(values)
    if not line and (same or target.dtype == torch.bool or field.dtype in UNSIGNED):
        target = _integers(target)
    width = field.width * (field.rows if field.level == "graph" else 1)
    return values, target.view(-1, width)


def _integers(value: Tensor) -> Tensor:
    """Returns the same memory as integers of the same size."""
    return value.view(INTEGERS[value.element_size()])
