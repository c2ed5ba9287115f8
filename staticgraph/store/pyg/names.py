"""Infers a field's level from its name, if every graph has as many nodes as edges.

Edges are sorted and padded separately from nodes, so a wrong guess would put a field's rows in the
wrong order. Only names that PyG and its data sets use are recognised; for others an error requires
``levels=``.
"""

from __future__ import annotations

from staticgraph.errors import BadGraph
from staticgraph.schema import Level

# Substrings of a name; then whole names.
OF_EDGES = ("edge", "bond")
OF_NODES = ("node", "atom", "mask")
NODE_NAMES = frozenset(
    {"x", "y", "z", "h", "pos", "vel", "norm", "force", "forces", "charge", "charges", "mass"}
) | {"n_id", "pe", "random_walk_pe", "laplacian_eigenvector_pe"}
EDGE_NAMES = frozenset({"e_id"})


def level_in(name: str) -> Level | None:
    """Returns the level that a substring of the name indicates; None if there is none."""
    if any(part in name for part in OF_EDGES):
        return "edge"
    if any(part in name for part in OF_NODES):
        return "node"
    return None


def level_by_name(key: str, rows: int) -> Level:
    """Returns the level of a field that has one row per node and also one row per edge.

    Args:
        key: its name.
        rows: its rows over all graphs; if there are none, either level is correct.

    Raises:
        BadGraph: if the name does not indicate a level.
    """
    if said := level_in(key):
        return said
    if key in NODE_NAMES or not rows:
        return "node"
    if key in EDGE_NAMES:
        return "edge"
    raise BadGraph(
        f"{key!r} has a row per node and one per edge, since every graph has as many of both, "
        f"and its name does not tell: pass levels={{{key!r}: 'node'}} or "
        f"levels={{{key!r}: 'edge'}}"
    )
