"""How many categories each integer column has, read from a model's embedding tables.

An HTTP request body may hold any number, and a number that an embedding table has no row for fails
the whole batch, including the requests of other clients. The weights give the number of rows, so a
model of the zoo, or its checkpoint, is enough to reject such a number by name, without any data.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from staticgraph.schema import Schema

ENCODERS = {"x": "node_encoder", "edge_attr": "edge_encoder"}


def categories_of(weights: Mapping[str, Tensor], schema: Schema) -> dict[str, tuple[int, ...]]:
    """Maps each integer field to the number of categories of each of its columns.

    Args:
        weights: ``state_dict()`` of a model of the zoo; of other models nothing is known.
        schema: the fields of a graph.
    """
    found = {name: _table_sizes(weights, part) for name, part in ENCODERS.items()}
    width = {item.name: item.width for item in schema}
    return {name: sizes for name, sizes in found.items() if sizes and width.get(name) == len(sizes)}


def _table_sizes(weights: Mapping[str, Tensor], part: str) -> tuple[int, ...]:
    """The number of rows of each of an encoder's embedding tables; empty if it has none."""
    sizes = []
    while (table := weights.get(f"{part}.tables.{len(sizes)}.weight")) is not None:
        sizes.append(len(table))
    return tuple(sizes)
