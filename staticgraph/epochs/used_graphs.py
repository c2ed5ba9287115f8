"""The graphs that a batcher uses: their sizes and positions, validated and kept in narrow dtypes.

For 100 million graphs a second copy in int64 is 2.4 GB, so code that looks at all of them works
piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.sizes.capacity import NODES_EDGES
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many

# From this many graphs on, sizes and order use narrow dtypes: 8 bytes per molecule, not 24.
NARROW_FROM = 1 << 22
# Graphs that are processed together where processing all at once would need another copy.
AT_ONCE = 1 << 21


def narrow_sizes_of(source: Any) -> IntArray:
    """``[n, C]`` sizes of a store or an array, as int64.

    For many graphs, a store's sizes keep the narrow dtype they have there.
    """
    narrow = getattr(source, "narrow_sizes", None)
    if narrow is not None and len(narrow) >= NARROW_FROM:
        return narrow
    return sizes_of(source if narrow is None else narrow)


def checked_bounds(bounds: ArrayLike | None, world_size: int, graphs: int) -> IntArray | None:
    """``[world_size + 1]`` where each rank's graphs begin; None where any rank takes any graph.

    Raises:
        ValueError: the bounds do not divide the graphs among the ranks.
    """
    if bounds is None or world_size == 1:
        return None
    checked = whole_numbers(np.asarray(bounds), "rank_bounds")
    if checked.shape != (world_size + 1,) or (np.diff(checked) < 0).any() or checked[0] != 0:
        raise ValueError(
            f"rank_bounds={checked.tolist()} for {how_many(world_size, 'rank')}: give where each "
            f"rank's graphs begin, from 0, and last their number, {graphs}"
        )
    if checked[-1] != graphs:
        raise ValueError(
            f"rank_bounds end at {checked[-1]}, and there are {how_many(graphs, 'graph')}"
        )
    return checked


def pieces(indices: IntArray) -> Iterator[IntArray]:
    """Splits the indices into pieces, so that no temporary is a second copy of all."""
    return (indices[k : k + AT_ONCE] for k in range(0, len(indices), AT_ONCE))


def histogram_of(sizes: IntArray, indices: IntArray) -> SizeHistogram:
    """How many of these graphs have each size."""
    names = (*NODES_EDGES, *(f"component {c}" for c in range(2, sizes.shape[1])))
    parts = [SizeHistogram.from_sizes(sizes[ids], names) for ids in pieces(indices)]
    nothing = SizeHistogram.from_sizes(np.empty((0, sizes.shape[1]), np.int64), names)
    return SizeHistogram.merged(parts) if parts else nothing


def planned_columns(sizes: IntArray, plan: BucketPlan) -> IntArray:
    """The columns of the sizes that the plan limits: all of them, or only nodes and edges.

    Raises:
        ValueError: the plan was made for other components.
    """
    planned = len(plan.capacities[0].size_limits)
    if planned == len(NODES_EDGES):
        return np.ascontiguousarray(sizes[:, :planned])
    if sizes.shape[1] != planned or any(len(c.size_limits) != planned for c in plan.capacities):
        raise ValueError(
            f"the graphs have {how_many(sizes.shape[1], 'component')}, and the plan's "
            f"{plan.capacities[0]} limits {planned}: make the plan with "
            "plan_buckets(store, ...) of the same data"
        )
    return sizes


def checked_indices(indices: ArrayLike | None, total: int, what: str = "indices") -> IntArray:
    """``[m]`` positions within the store: int64, or int32 for many graphs where it holds them.

    Raises:
        ValueError: a mask whose length is not that of the store.
        IndexError: a position is outside the store.
    """
    dtype = np.int32 if NARROW_FROM <= total <= np.iinfo(np.int32).max else np.int64
    if indices is None:
        return cast(IntArray, np.arange(total, dtype=dtype))
    rows = np.asarray(indices).reshape(-1)
    return cast(IntArray, np.array(positions_in(rows, total, what, outside=IndexError), dtype))
