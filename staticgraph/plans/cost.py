"""What a step at a capacity costs, as a formula that a probe or a guess can fill in."""

from __future__ import annotations

from dataclasses import dataclass

from staticgraph.sizes.capacity import Capacity


@dataclass(frozen=True, slots=True)
class StepCost:
    """``fixed + node * N + edge * E + pair * G * M * M``, in any unit.

    The fixed part is what a step costs however small (launches, the optimizer); the pairs are those
    of dense attention, where each graph of a bucket takes a square of its largest graph.

    The defaults are a guess for message passing on a GPU, in units of one node: an edge costs half
    a node, and a step as much as a thousand nodes. Measure your own with a fit of step times over a
    few capacities, or of peak bytes where memory is what is scarce.
    """

    fixed: float = 1000.0
    node: float = 1.0
    edge: float = 0.5
    pair: float = 0.0

    def of(self, capacity: Capacity) -> float:
        """One step at this capacity."""
        return (
            self.fixed
            + self.node * capacity.nodes
            + self.edge * capacity.edges
            + self.pair * capacity.graphs * capacity.max_graph_nodes**2
        )
