"""Measures how near each node is to the training nodes: how often sampling from them reaches it.

Problem: a training node sees only the resident part of its neighbourhood; if nodes are numbered at
random, that is only as large a share as the buffer is of the graph. Training nodes are few, so the
nodes within reach of a model's hops often fit in the buffer. Idea: number the other nodes by how
often random walks from the training nodes visit them, so that the partitions right after those of
the training nodes hold their neighbourhoods (:class:`NodeCache` with ``near`` keeps these
resident).

A walk moves from a node to the source of a uniformly chosen incoming edge, as sampling does. Memory
is five numbers per node; edges are read once per hop and once for degrees. Related: PaGraph (Lin et
al., SoCC 2020), which caches by degree, and GNNLab (Yang et al., EuroSys 2022), which caches by how
often a node was sampled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.disk.edge_source import EdgeSource


def visits(
    source: EdgeSource, training: NDArray[np.int64], num_nodes: int, hops: int
) -> NDArray[np.float64]:
    """Returns ``[N]``: the expected visits to each node by one random walk from each training node.

    Args:
        source: the edges, read ``hops + 1`` times.
        training: distinct training nodes.
        num_nodes: N.
        hops: steps per walk.
    """
    degrees = np.zeros(num_nodes, np.int64)
    for rows in source:
        degrees += np.bincount(rows[1], minlength=num_nodes)
    here = np.zeros(num_nodes)
    here[training] = 1.0
    total = here.copy()
    for _ in range(hops):
        there = np.zeros(num_nodes)
        here /= np.maximum(1, degrees)
        for rows in source:
            there += np.bincount(rows[0], here[rows[1]], num_nodes)
        here = there
        total += here
    return total
