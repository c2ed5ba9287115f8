"""The packs of a plan, made once and kept in its file.

The problem: a packing by linear programs takes seconds and, when stopped by a time limit, depends
on the machine; ranks that each made their own would disagree, and so would a resumed run. The idea:
the packing is made with the plan and written into the plan's file, and code that assigns graphs to
packs (``window=None``) reads it from there.

The invariant: a packing is used only for graphs of exactly the sizes it was made for, in a bucket
with the same limits; for any other graphs it is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from staticgraph.packing.choose_packing import TIME_LIMIT, PackingEffort, pack_histogram
from staticgraph.packing.packing_result import Packing
from staticgraph.packing.placement import homes
from staticgraph.sizes.capacity import NODES_EDGES, Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers

ARRAYS = ("starts", "types", "copies", "counts")


def digest_of_packings(packings: Sequence[Packing]) -> str:
    """A digest of 16 hexadecimal digits that distinguishes packings with different patterns."""
    digest = hashlib.sha256()
    for packing in packings:
        for name in ARRAYS:
            values = np.ascontiguousarray(getattr(packing, name), dtype=np.int64)
            digest.update(len(values).to_bytes(8, "little") + values.tobytes())
    return digest.hexdigest()[:16]


def packings_for(
    sizes: IntArray,
    capacities: Sequence[Capacity],
    *,
    effort: PackingEffort = "best",
    time_limit: float = TIME_LIMIT,
    progress: bool = False,
) -> tuple[Packing, ...]:
    """Packs the graphs ``[n, C]`` into their home buckets, one packing per bucket.

    Args:
        sizes: of all graphs to be packed.
        capacities: of the buckets.
        effort: of :func:`pack_histogram`.
        time_limit: seconds for all buckets together.
        progress: whether to show progress.
    """
    packings = []
    at_home = homes(sizes, capacities)
    used = [k for k in range(len(capacities)) if (at_home == k).any()]
    for number in used:
        histogram = histogram_at(sizes[at_home == number])
        limits, graphs = capacities[number].size_limits, capacities[number].graph_limit
        share = time_limit / len(used)
        packings.append(
            pack_histogram(
                histogram, limits, max_graphs=graphs, effort=effort, time_limit=share,
                progress=progress,
            )
        )  # fmt: skip
    return tuple(packings)


def histogram_at(sizes: IntArray) -> SizeHistogram:
    """The histogram of ``[n, C]`` sizes, with generic names for the further components."""
    more = (f"component {c}" for c in range(2, sizes.shape[1]))
    return SizeHistogram.from_sizes(sizes, (*NODES_EDGES, *more))


def kept_packing(
    packings: Sequence[Packing], histogram: SizeHistogram, capacity: Capacity
) -> Packing | None:
    """The plan's packing for exactly these graphs in this bucket, or None."""
    for packing in packings:
        most, known = packing.max_graphs, packing.histogram
        if (
            tuple(packing.limits.tolist()) == tuple(capacity.size_limits)
            and most is not None
            and most <= capacity.graph_limit
            and np.array_equal(known.sizes, histogram.sizes)
            and np.array_equal(known.counts, histogram.counts)
        ):
            return packing
    return None


def packing_to_dict(packing: Packing) -> dict[str, Any]:
    """The packing's numbers, sizes and patterns as plain values, for a file."""
    return {
        "packs": packing.num_packs,
        "proven": packing.proven,
        "method": packing.method,
        "components": list(packing.histogram.components),
        "sizes": packing.histogram.sizes.tolist(),
        "graphs": packing.histogram.counts.tolist(),
        "limits": packing.limits.tolist(),
        "max_graphs": packing.max_graphs,
        **{name: getattr(packing, name).tolist() for name in ARRAYS},
    }


def packing_from_dict(values: dict[str, Any]) -> Packing:
    """Rebuilds a packing from the output of :func:`packing_to_dict`.

    Raises:
        ValueError: a limit is exceeded, or a graph is missing or appears twice.
    """
    sizes = whole_numbers(np.array(values["sizes"]), "sizes of a packing")
    histogram = SizeHistogram(
        sizes, whole_numbers(np.array(values["graphs"]), "graphs"), tuple(values["components"])
    )
    starts, types, copies, counts = (
        whole_numbers(np.array(values[name]), f"{name} of a packing") for name in ARRAYS
    )
    limits = whole_numbers(np.array(values["limits"]), "limits of a packing")
    packing = Packing(
        histogram, limits, values["max_graphs"], starts, types, copies, counts,
        str(values["method"]), values["proven"],
    )  # fmt: skip
    try:
        packing.check()
        right = len(starts) == len(counts) + 1 and packing.num_packs == values["packs"]
    except (AssertionError, IndexError, ValueError) as error:
        raise ValueError(f"a packing of the plan is wrong ({error}): make the plan again") from None
    if not right:
        raise ValueError("a packing of the plan is incomplete: make the plan again")
    return packing
