"""What capacities are chosen for, and what was chosen: numbers alone."""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray


class Sizes(NamedTuple):
    """The graphs that a plan is made for.

    Attributes:
        all: ``[n, C]`` int64, every graph of the data, each of which must fit a bucket alone.
        trained: ``[t, C]`` int64, those whose mean the batches must hold.
        maxima: ``[C]`` int64, the largest of all, component by component.
        components: their names, ``node`` and ``edge`` first.
    """

    all: IntArray
    trained: IntArray
    maxima: IntArray
    components: tuple[str, ...]


class Chosen(NamedTuple):
    """Capacities, before reserves for the data's own axes.

    Attributes:
        capacities: one or several.
        efficiency: real rows over physical rows of nodes, edges and graphs, as expected.
        batch_size: graphs of an exact batch; None where their number varies.
        margin: how far the limits of exact batches lie over the mean batch.
        note: what a reader of the plan should know.
    """

    capacities: tuple[Capacity, ...]
    efficiency: tuple[float, float, float]
    batch_size: int | None = None
    margin: float | None = None
    note: str = ""


def capacity_of(
    limits: IntArray, components: tuple[str, ...], graphs: int, largest: int = 0
) -> Capacity:
    """Usable limits of each component -> the physical rows that hold them."""
    nodes, edges, *more = limits.tolist()
    # At least two, since a leading size of 1 is what everything that is broadcast has.
    extra = [(name, max(2, rows + 1)) for name, rows in zip(components[2:], more, strict=True)]
    return Capacity.distinct(max(nodes, largest) + 1, edges, graphs, largest, extra)
