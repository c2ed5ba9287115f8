"""Batches of a sampled loader: padded hops, and for links the positions of their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.errors import StaleBatch
from staticgraph.outofcore.sampling.hops import HopBatch


class LinkEnds:
    """The positions of the endpoints of a batch of edges among its seeds.

    Attributes:
        source, destination: ``[B]`` positions among the seeds, 0 in the padding.
        relation: ``[B]`` relations, 0 in the padding.
        negatives: ``[K]`` positions of drawn resident nodes among the seeds.
        mask: ``[B]`` bool; real edges.
    """

    destination: Tensor
    relation: Tensor
    source: Tensor

    __slots__ = ("destination", "mask", "negatives", "relation", "source")

    def __init__(self, edges: NDArray[Any], local: NDArray[np.int64], size: int) -> None:
        n = len(edges)
        self.mask: Tensor = torch.zeros(size, dtype=torch.bool)
        self.source, self.destination, self.relation = torch.zeros(3, size, dtype=torch.int64)
        self.mask[:n] = True
        ends = torch.from_numpy(local)
        self.source[:n], self.destination[:n] = ends[:n], ends[n : 2 * n]
        if edges.shape[1] == 3:
            self.relation[:n] = torch.from_numpy(edges[:, 1].astype(np.int64))
        self.negatives: Tensor = ends[2 * n :]


class SampledBatch:
    """A batch of a sampled loader: padded hops, their seeds and, for links, their edges.

    Attributes:
        seeds: ``[n]`` the graph's numbers of the seeds.
        nodes: ``[n]`` the caller's numbers of the seeds, which index the caller's arrays.
        state: the number of the state of the buffer in which it was sampled.
        ends: for links, the positions of the edges' endpoints; None for nodes.
    """

    ends: LinkEnds | None
    nodes: NDArray[np.int64]
    seeds: NDArray[np.int64]
    state: int

    __slots__ = ("_hops", "ends", "nodes", "seeds", "state")

    def __init__(
        self,
        hops: HopBatch,
        seeds: NDArray[np.int64],
        nodes: NDArray[np.int64],
        state: int,
        ends: LinkEnds | None,
    ) -> None:
        self._hops: HopBatch | None = hops
        self.seeds, self.nodes = seeds, nodes
        self.state, self.ends = state, ends

    @property
    def hops(self) -> HopBatch:
        """Draws, features ``x`` and labels ``y``.

        Raises:
            StaleBatch: if the loader has returned another batch since, which may have overwritten
                these.
        """
        if self._hops is None:
            raise StaleBatch(
                "this batch was given back when the loader gave another one, whose samples may be "
                "written over it: use each batch before the next, and copy what you keep, "
                "batch.hops.x.clone() (a list(loader) keeps the last alone)"
            )
        return self._hops

    def expire(self) -> None:
        """Marks the memory of the hops as reused by another batch."""
        self._hops = None
