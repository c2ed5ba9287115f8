"""What is served: a server, how bodies are read for it, and what its answers are called."""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.schema import Schema
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.engine.server import Server

# What OGB's features of a molecule are: of an atom, and of a bond.
ATOMS, BONDS = ("node", (9,), "int64"), ("edge", (3,), "int64")


class Service(NamedTuple):
    """A model that answers, and how bodies are read for it."""

    server: Server
    reader: Reader
    title: str
    task: str | None


def has_molecules(schema: Schema) -> bool:
    """Whether graphs are molecules with the features that this library gives a SMILES, as the data
    says of itself."""
    return schema.molecules and fits_molecules(schema)


def fits_molecules(schema: Schema) -> bool:
    """Whether fields have the names, shapes and dtypes that this library gives a SMILES; what their
    numbers mean is not among them: PyG's own molecules (``molnet:``) have other features so."""
    found = {item.name: (item.level, item.shape, item.dtype) for item in schema if item.name != "y"}
    return found == {"x": ATOMS, "edge_attr": BONDS}
