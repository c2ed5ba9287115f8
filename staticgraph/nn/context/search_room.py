"""How many rows a model's forward has for what it searches for: edges, and triplets of them."""

from __future__ import annotations

from torch import nn


class SearchRoom(nn.Module):
    """Rows of fixed shape for the edges that ``radius_graph`` finds in a forward.

    Without it, each node has a place for as many neighbours as the search may take. A part of the
    model, without parameters; :func:`staticgraph.atoms.fit_searches` makes it.

    Args:
        cutoff: radius of the search, in the unit of the positions.
        per_node: rows of edges per row of nodes.
        per_edge: rows of DimeNet's triplets per row of edges.
    """

    _staticgraph_overflows = True  # named by an error of a loss that is not finite

    def __init__(self, cutoff: float, per_node: float, per_edge: float) -> None:
        super().__init__()
        self.cutoff: float = cutoff
        self.per_node: float = per_node
        self.per_edge: float = per_edge

    def grow(self, factor: float = 1.25) -> None:
        """Makes more room after an overflow; a runner is then warmed up again."""
        self.per_node *= factor
        self.per_edge *= factor

    def extra_repr(self) -> str:
        """What ``print(model)`` shows of it."""
        return f"per_node={self.per_node:.3g}, per_edge={self.per_edge:.3g}"
