"""The inputs and the result of choosing capacities, as plain numbers."""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray


class Sizes(NamedTuple):
    """The graphs that a plan is made for.

    Attributes:
        all: ``[n, C]`` int64, every graph of the data, each of which must fit a bucket by itself.
        trained: ``[t, C]`` int64, the training graphs, whose mean the batches must hold.
        maxima: ``[C]`` int64, the largest value of each component over ``all``.
        components: the names of the components, ``node`` and ``edge`` first.
    """

    all: IntArray
    trained: IntArray
    maxima: IntArray
    components: tuple[str, ...]


class Chosen(NamedTuple):
    """Chosen capacities, before reserves for the data's own axes.

    Attributes:
        capacities: one or several.
        efficiency: expected real rows over physical rows of nodes, edges and graphs.
        batch_size: graphs per exact batch; None where their number varies.
        margin: how far the limits of exact batches lie above the mean batch.
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
    """The capacity whose physical rows hold these usable limits of each component."""
    nodes, edges, *more = limits.tolist()
    # At least two, since a leading size of 1 marks a tensor that is broadcast.
    extra = [(name, max(2, rows + 1)) for name, rows in zip(components[2:], more, strict=True)]
    return Capacity.distinct(max(nodes, largest) + 1, edges, graphs, largest, extra)
