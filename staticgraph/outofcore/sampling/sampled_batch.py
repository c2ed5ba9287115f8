"""What the loader gives: padded hops, and what they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.errors import StaleBatch
from staticgraph.outofcore.sampling.hops import HopBatch


class LinkEnds:
    """Where the ends of a batch of edges stand among its seeds.

    Attributes:
        source, destination: ``[B]`` positions among the seeds, 0 in the padding.
        relation: ``[B]``.
        negatives: ``[K]`` positions of drawn resident nodes.
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
    """What the loader gives: padded hops and what they are for.

    Attributes:
        seeds: ``[n]`` the graph's numbers of the seeds.
        nodes: ``[n]`` the caller's numbers of the seeds, which index the caller's arrays.
        state: the state of the buffer it was sampled in.
        ends: for links, where the edges' ends stand; None for nodes.
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
            StaleBatch: the loader gave another batch since, which may be written over these.
        """
        if self._hops is None:
            raise StaleBatch(
                "this batch was given back when the loader gave another one, whose samples may be "
                "written over it: use each batch before the next, and copy what you keep, "
                "batch.hops.x.clone() (a list(loader) keeps the last alone)"
            )
        return self._hops

    def expire(self) -> None:
        """The memory of the hops is another batch's from now on."""
        self._hops = None
