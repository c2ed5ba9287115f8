"""What the tables of a model's first layers say of the data: how many categories a column has.

A body over HTTP may hold any number, and one that an embedding table has no row for fails the
batch of everybody who is in it. The weights know how many rows there are, so who has a model of
the zoo, or its checkpoint, needs no data to refuse such a number with its name.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from staticgraph.schema import Schema

ENCODERS = {"x": "node_encoder", "edge_attr": "edge_encoder"}


def categories_of(weights: Mapping[str, Tensor], schema: Schema) -> dict[str, tuple[int, ...]]:
    """Integer field -> how many categories each of its columns has.

    Args:
        weights: of a model of the zoo (``state_dict()``); of another model nothing is known.
        schema: the fields of a graph.
    """
    found = {name: _table_sizes(weights, part) for name, part in ENCODERS.items()}
    width = {item.name: item.width for item in schema}
    return {name: sizes for name, sizes in found.items() if sizes and width.get(name) == len(sizes)}


def _table_sizes(weights: Mapping[str, Tensor], part: str) -> tuple[int, ...]:
    """The rows of the embedding tables of an encoder; none where it has none."""
    sizes = []
    while (table := weights.get(f"{part}.tables.{len(sizes)}.weight")) is not None:
        sizes.append(len(table))
    return tuple(sizes)
