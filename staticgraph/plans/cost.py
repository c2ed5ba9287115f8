"""The cost of a step at a capacity, as a formula with measured or guessed coefficients."""

from __future__ import annotations

from dataclasses import dataclass

from staticgraph.sizes.capacity import Capacity


@dataclass(frozen=True, slots=True)
class StepCost:
    """``fixed + node * N + edge * E + pair * G * M * M``, in any unit.

    The fixed part is the cost of even the smallest step (launches, the optimizer); the pair term is
    for dense attention, where every graph of a bucket takes the square of its largest graph.

    The defaults are a guess for message passing on a GPU, in units of one node: an edge costs half
    as much as a node, and a step as much as a thousand nodes. For measured values, fit step times
    over a few capacities, or peak bytes where memory is the scarce resource.
    """

    fixed: float = 1000.0
    node: float = 1.0
    edge: float = 0.5
    pair: float = 0.0

    def of(self, capacity: Capacity) -> float:
        """The cost of one step at this capacity."""
        return (
            self.fixed
            + self.node * capacity.nodes
            + self.edge * capacity.edges
            + self.pair * capacity.graphs * capacity.max_graph_nodes**2
        )
