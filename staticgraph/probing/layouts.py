"""Capacities that tell apart how attention is laid out, where those that were probed do not.

At small capacities the blocks by size of a converted layer are one block of all, as dense attention
is at every capacity, so the same sum of counts fits both; at twice the largest graph one takes a
third of the other. Explicit weights of a block live beside those of the other blocks only while it
is computed, which one block alone cannot show either. So more readings follow where several
blocks are worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from staticgraph.memory.fit import LAYOUTS_OF, Fit, counts_of
from staticgraph.sizes.capacity import Capacity

# A simpler form that was exact before is kept where it misses the further readings by no more.
EXPLAINED = 0.03
# Terms of a form that depend on the layout.
BLOCKS = ("places", "pairs", "widest", "block")
# Times nodes, edges, graphs and the largest graph of the costliest capacity.
GROWN = ((1, 1, 2, 2), (2, 2, 2, 2), (1, 1, 4, 2), (2, 2, 4, 4), (1, 1, 2, 4), (2, 2, 4, 1))


def more(found: Fit, capacities: Sequence[Capacity]) -> list[Capacity]:
    """What else to read; nothing where the layouts part already, or where none matters.

    Args:
        found: fitted on ``capacities``.
    """
    matters = any(
        value and term in BLOCKS
        for plane in found.planes
        for term, value in zip(found.terms, plane, strict=True)
    )
    if not matters or any(_parts(capacity) for capacity in capacities):
        return []
    return [grown for grown in _grown(capacities[-1]) if _parts(grown)]


def explaining(found: Fit, readings: Sequence[tuple[Capacity, float]]) -> Fit | None:
    """The fit with the layout that explains all readings, bytes at a capacity, to 3%; or None."""
    fits = [found._replace(layout=layout) for layout in LAYOUTS_OF[found.form]]

    def worst(fit: Fit) -> float:
        return max(abs(fit.predict(capacity) / nbytes - 1) for capacity, nbytes in readings)

    best = min(fits, key=worst)
    return best._replace(residual=worst(best)) if worst(best) <= EXPLAINED else None


def _parts(capacity: Capacity) -> bool:
    """Whether the layouts count differently here."""
    one, several = counts_of(capacity), counts_of(capacity, "auto")
    return any(one[term] != several[term] for term in BLOCKS)


def _grown(capacity: Capacity) -> list[Capacity]:
    return [
        replace(
            capacity,
            nodes=max(capacity.nodes * n, capacity.max_graph_nodes * m + capacity.node_reserve),
            edges=capacity.edges * e,
            graphs=capacity.graphs * g,
            max_graph_nodes=capacity.max_graph_nodes * m,
            extra=tuple((name, rows * n) for name, rows in capacity.extra),
            order_statistics=(),
        )
        for n, e, g, m in GROWN
    ]
