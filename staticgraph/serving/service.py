"""What is served: a model's server and the reader of its request bodies."""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.schema import Schema
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.engine.server import Server

# The level, shape and dtype of OGB's features of an atom and of a bond.
ATOMS, BONDS = ("node", (9,), "int64"), ("edge", (3,), "int64")


class Service(NamedTuple):
    """A running server, the reader of its request bodies, a title, and the task of its outputs."""

    server: Server
    reader: Reader
    title: str
    task: str | None


def has_molecules(schema: Schema) -> bool:
    """Whether the data set recorded that its graphs are molecules with the features that this
    library computes from SMILES."""
    return schema.molecules and fits_molecules(schema)


def fits_molecules(schema: Schema) -> bool:
    """Whether the fields have the names, shapes and dtypes that this library computes from SMILES.

    The values may have another meaning, as in PyG's own molecules (``molnet:``)."""
    found = {item.name: (item.level, item.shape, item.dtype) for item in schema if item.name != "y"}
    return found == {"x": ATOMS, "edge_attr": BONDS}
