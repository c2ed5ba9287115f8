"""Index fields: values that refer to rows of their graph.

A batch adds to each value the number of rows before its graph (PyG's ``__inc__``), so an
out-of-range value would silently point into another graph. Such values are rejected when a store is
built, with an error that names the graph. Values that refer to edges are renumbered when edges are
sorted by destination; a graph that is read back has its original values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.schema import Field, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array

Offsets = Mapping[str, IntArray]


def graph_of_row(field: Field, offsets: Offsets) -> IntArray:
    """Returns ``[rows]``: the graph of each row of a field's column."""
    counts = np.diff(offsets[field.level]) * field.rows
    return np.repeat(np.arange(len(counts)), counts)


def counted(field: Field) -> list[tuple[int, str]]:
    """Returns the position and the level of each scalar of a row that is an index into a level."""
    levels = field.counts * field.width if len(field.counts) == 1 else field.counts
    return [(place, level) for place, level in enumerate(levels) if level]


def check_indices(schema: Schema, columns: Mapping[str, Array], offsets: Offsets) -> None:
    """Rejects index values that are out of range.

    Raises:
        BadGraph: if a value is out of range or a field is not integral; the message names the field
            and, for a value, its graph.
    """
    for field in schema:
        if not field.counts:
            continue
        column = columns[field.name]
        if column.dtype.kind not in "iu":
            raise BadGraph(
                f"{field.name!r} is {column.dtype} and counts {' and '.join(set(field.counts))}: "
                "an index holds whole numbers; convert it, or let __inc__ return 0 for it"
            )
        if (outside := first_outside(field, column, offsets)) is not None:
            raise BadGraph(
                f"{outside.words}; fix them, rename the field if it is not an index, or pass "
                f"exclude=[{field.name!r}]"
            )


class Outside(NamedTuple):
    """An out-of-range value of an index field.

    Attributes:
        field: the field's name.
        graph: the graph's index.
        value: the value.
        level: the level that it refers to.
        most: the graph's rows of that level.
    """

    field: str
    graph: int
    value: int
    level: str
    most: int

    @property
    def words(self) -> str:
        """The description of the error."""
        return (
            f"graph {self.graph} has {self.value} in {self.field!r}, which counts {self.level!r}, "
            f"of which it has {self.most}: values must be from 0 and below that"
        )


def first_outside(field: Field, column: Array, offsets: Offsets) -> Outside | None:
    """Returns the first out-of-range value of an index field; None if there is none.

    Args:
        field: an index field.
        column: ``[rows, *shape]`` integers.
        offsets: ``[n + 1]`` for each level that the field indexes, and for its own level.
    """
    flat = column.reshape(-1, field.width)
    owner = graph_of_row(field, offsets)
    for place, level in counted(field):
        values = flat[:, place]
        most = np.diff(offsets[level])
        wrong = (values < 0) | (values >= most[owner])
        if wrong.any():
            row = int(wrong.argmax())
            graph = int(owner[row])
            return Outside(field.name, graph, int(values[row]), level, int(most[graph]))
    return None


def renumbered(
    fields: Iterable[Field],
    columns: Mapping[str, Array],
    offsets: Offsets,
    level: str,
    order: IntArray,
) -> dict[str, Array]:
    """Returns the columns after permuting ``level`` by ``order`` (positions among all rows).

    Fields on the level have their rows moved; fields that index the level have their values
    renumbered.
    """
    now = np.empty_like(order)
    now[order] = np.arange(len(order))
    first = offsets[level][:-1]
    changed = dict(columns)
    for field in fields:
        column = changed[field.name]
        places = [place for place, of in counted(field) if of == level]
        if places:
            owner = graph_of_row(field, offsets)
            flat = column.reshape(-1, field.width).astype(np.int64)
            for place in places:
                at = flat[:, place] + first[owner]
                flat[:, place] = now[at] - first[owner]
            column = flat.reshape(column.shape)
        if field.level == level:
            column = column[order]
        changed[field.name] = column
    return changed
