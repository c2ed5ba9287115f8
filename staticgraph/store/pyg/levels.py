"""The level of a field where its name or its numbers of rows decide, and errors where they do not.

Edges are sorted and padded separately from nodes, so a wrong guess would put a field's rows in the
wrong order. If every graph has as many nodes as edges, only names that PyG and its data sets use
are recognised; for others an error requires ``levels=``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.schema import Axis, Level
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.columns import Array, native
from staticgraph.text.how_many import how_many


def whole_count(nodes: Any, number: int) -> int:
    """Returns ``num_nodes`` of one graph as an int; PyG allows any type, and None means 0.

    Raises:
        BadGraph: if it is not a whole number.
    """
    if nodes is None or type(nodes) is int:
        return nodes or 0
    nodes = nodes.item() if isinstance(nodes, Tensor) and nodes.numel() == 1 else nodes
    return int(whole_numbers(nodes, f"graph {number}: num_nodes", BadGraph).reshape(-1)[0])


def as_tensor(value: Any, key: str = "edge_index") -> Tensor | None:
    """Converts numbers, arrays and tensors to a CPU tensor with at least one dimension.

    Returns None for values that a tensor cannot hold (strings).

    Raises:
        BadGraph: for a sparse tensor, or an array of a dtype that torch does not have.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise BadGraph(
                f"{key!r}: sparse adjacency matrices are not supported: store edge_index instead"
            )
        return torch.atleast_1d(value.detach().cpu())
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return torch.atleast_1d(torch.from_numpy(native(np.atleast_1d(value), key)))
    if isinstance(value, bool | int | float):
        return torch.tensor([value])
    return None


def as_array(key: str, tensor: Tensor) -> Array:
    """Converts a field's tensor over all graphs to the array that a store keeps.

    Raises:
        BadGraph: if NumPy has no such dtype.
    """
    try:
        return tensor.contiguous().numpy()
    except TypeError:  # bfloat16 and 8-bit floats
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise BadGraph(
            f"{key!r} is {dtype}, which a store cannot keep; give it as float32"
        ) from None


def odd_graph(values: ArrayLike, expected: ArrayLike) -> int | None:
    """Returns the first graph of which two numbers ``[n]`` differ; None if there is none."""
    differ = np.asarray(values) != np.asarray(expected)
    return int(differ.argmax()) if differ.any() else None


def axis_of(name: str, axes: Iterable[Axis]) -> Axis | None:
    """Returns the axis of which ``axis.field`` is a field; None if it is of none of them."""
    owners = [axis for axis in axes if name.startswith(f"{axis.name}.")]
    return max(owners, key=lambda axis: len(axis.name), default=None)


# Substrings of a name; then whole names.
OF_EDGES = ("edge", "bond")
OF_NODES = ("node", "atom", "mask")
NODE_NAMES = frozenset(
    {"x", "y", "z", "h", "pos", "vel", "norm", "force", "forces", "charge", "charges", "mass"}
) | {"n_id", "pe", "random_walk_pe", "laplacian_eigenvector_pe"}
EDGE_NAMES = frozenset({"e_id"})
# A field that matches a level in at least this share of graphs belongs to it; the others are
# errors.
MOST = 0.5


def level_in(name: str) -> Level | None:
    """Returns the level that a substring of the name indicates; None if there is none."""
    if any(part in name for part in OF_EDGES):
        return "edge"
    if any(part in name for part in OF_NODES):
        return "node"
    return None


def level_by_name(key: str, rows: int) -> Level:
    """Returns the level of a field that has one row per node and also one row per edge, by its
    name; if it has no rows in any graph, either level is correct.

    Raises:
        BadGraph: if the name does not indicate a level.
    """
    if level := level_in(key):
        return level
    if key in NODE_NAMES or not rows:
        return "node"
    if key in EDGE_NAMES:
        return "edge"
    raise BadGraph(
        f"{key!r} has a row per node and one per edge, since every graph has as many of both, "
        f"and its name does not tell: pass levels={{{key!r}: 'node'}} or "
        f"levels={{{key!r}: 'edge'}}"
    )


def odd_rows(key: str, lengths: IntArray, levels: Mapping[str, IntArray]) -> str:
    """Describes the graph, what was found and expected, and the fix.

    Args:
        key: the field.
        lengths: ``[n]`` its rows in each graph, not all equal.
        levels: candidate levels -> ``[n]``.
    """
    if not lengths.any():
        return (
            f"{key!r} has no row in any graph, so that nothing tells what its rows are: "
            f"exclude=[{key!r}] in GraphStore.from_pyg(graphs, ...) leaves it out, "
            f"levels={{{key!r}: 'rows'}} gives it rows of its own"
        )
    shares = {what: float((lengths == counts).mean()) for what, counts in levels.items()}
    nearest = max(shares, key=lambda what: shares[what], default=None)
    remedy = (
        f"levels={{{key!r}: 'rows'}} in GraphStore.from_pyg(graphs, ...) gives it rows of its own, "
        f"exclude=[{key!r}] leaves it out"
    )
    if nearest is not None and shares[nearest] >= MOST:
        counts = levels[nearest]
        odd = int((lengths != counts).argmax())
        return (
            f"{key!r} has {rows_in(lengths, levels, odd)}; expected were {counts[odd]}, one for "
            f"each {nearest}, as in {int((lengths == counts).sum()):,} of the "
            f"{how_many(len(lengths), 'graph')}: fix graph {odd}; or, if its rows are something "
            f"else, {remedy}"
        )
    other = int((lengths != lengths[0]).argmax())
    could = [f"{counts[0]} (one for each {what})" for what, counts in levels.items()]
    expected = " or ".join([*could, "as many in every graph"])
    return (
        f"{key!r} has {rows_in(lengths, levels, 0)}, but {rows_in(lengths, levels, other)}; "
        f"expected were {expected}: {remedy}"
    )


def rows_in(lengths: IntArray, levels: Mapping[str, Sequence[int] | IntArray], graph: int) -> str:
    """Returns ``7 rows in graph 1, which has 3 nodes and 3 edges``: ``[n]`` rows of a field in each
    graph, and of each level."""
    rows = [
        how_many(counts[graph], what) if what in ("node", "edge") else f"{counts[graph]} of {what}"
        for what, counts in levels.items()
    ]
    present = " and ".join(rows) or "none of a type of that name"
    return f"{how_many(lengths[graph], 'row')} in graph {graph}, which has {present}"
