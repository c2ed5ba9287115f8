"""What a field's name tells of its rows, where every graph has as many nodes as edges.

Edges are sorted and padded apart from nodes, so a wrong guess would put some fields' rows in the
wrong order: names that PyG and its data sets use tell, and any other is asked for.
"""

from __future__ import annotations

from staticgraph.errors import BadGraph
from staticgraph.schema import Level

# A part of the name, or all of it.
OF_EDGES = ("edge", "bond")
OF_NODES = ("node", "atom", "mask")
NODE_NAMES = frozenset(
    {"x", "y", "z", "h", "pos", "vel", "norm", "force", "forces", "charge", "charges", "mass"}
) | {"n_id", "pe", "random_walk_pe", "laplacian_eigenvector_pe"}
EDGE_NAMES = frozenset({"e_id"})


def level_in(name: str) -> Level | None:
    """The level that a part of a name says; None where none does."""
    if any(part in name for part in OF_EDGES):
        return "edge"
    if any(part in name for part in OF_NODES):
        return "node"
    return None


def level_by_name(key: str, rows: int) -> Level:
    """The level of a field with a row per node and one per edge.

    Args:
        key: its name.
        rows: over all graphs; where there are none, either will do.

    Raises:
        BadGraph: the name does not tell.
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
