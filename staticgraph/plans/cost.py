"""The cost of a step at a capacity, and the cheapest way to divide something into classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def cheapest_classes(costs: NDArray[np.float64], most: int) -> list[list[tuple[int, int]]]:
    """For each K up to ``most``, the K classes ``(i, j)`` of least total cost that cover all.

    Args:
        costs: ``[C + 1, C + 1]`` the cost of the class from cut ``i`` to cut ``j``; infinite where
            there is none.
        most: the largest K; one that is impossible is left out.
    """
    size = len(costs)
    best, came = np.full(size, np.inf), []
    best[0] = 0.0
    paths = []
    for _ in range(most):
        through = best[:, None] + costs
        came.append(np.argmin(through, axis=0))
        best = through[came[-1], np.arange(size)]
        if np.isfinite(best[-1]):
            path, j = [], size - 1
            for before in reversed(came):
                path.append((int(before[j]), j))
                j = int(before[j])
            paths.append(path[::-1])
    return paths
