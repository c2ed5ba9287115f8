"""Which layout attention has, where the probed capacities do not tell.

At small capacities the blocks by size of a converted layer are one block of all, as dense attention
is at every capacity, so the same sum of counts fits both; at twice the largest graph one takes a
third of the other. One more reading, at a capacity where they part, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from staticgraph.memory.fit import LAYOUTS, Fit, counts_of
from staticgraph.sizes.capacity import Capacity

# Terms of a form that depend on the layout.
BLOCKS = ("places", "pairs")
# Times the largest graph and the graphs of the costliest capacity, until the layouts part.
GROWTH = (2, 4, 8)


def decided(
    found: Fit, capacities: Sequence[Capacity], bytes_at: Callable[[Capacity], float | None]
) -> Fit:
    """The fit, with the layout that explains one more reading best.

    Args:
        found: fitted on ``capacities``.
        bytes_at: reads one more; None where memory does not suffice, and the fit stays.
    """
    alike = [
        layout
        for layout in LAYOUTS
        if all(_blocks(c, layout) == _blocks(c, found.layout) for c in capacities)
    ]
    matters = any(
        value and term in BLOCKS
        for plane in found.planes
        for term, value in zip(found.terms, plane, strict=True)
    )
    if len(alike) == 1 or not matters:
        return found
    apart = _apart(capacities[-1], alike)
    measured = None if apart is None else bytes_at(apart)
    if apart is None or measured is None:
        return found
    fits = [found._replace(layout=layout) for layout in alike]
    return min(fits, key=lambda fit: abs(fit.predict(apart) / measured - 1))


def _blocks(capacity: Capacity, layout: str) -> tuple[float, ...]:
    counts = counts_of(capacity, layout)  # pyright: ignore[reportArgumentType]
    return tuple(counts[term] for term in BLOCKS)


def _apart(capacity: Capacity, layouts: Sequence[str]) -> Capacity | None:
    """A capacity at which not all layouts count the same; None where there is none near."""
    for times in GROWTH:
        largest = capacity.max_graph_nodes * times
        grown = replace(
            capacity,
            nodes=max(capacity.nodes, largest + capacity.node_reserve),
            graphs=capacity.graphs * times,
            max_graph_nodes=largest,
            ranks=(),
        )
        if len({_blocks(grown, layout) for layout in layouts}) > 1:
            return grown
    return None
