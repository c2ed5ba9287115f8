"""A batch's tensors with others in their places.

Row pointers follow from the edges, and fused loops read the one for the other: where the edges are
exchanged, pointers to what stood there before would give another graph's sums, and no error. So
they are left out, and whoever needs them makes them
(:mod:`staticgraph.batches.batch.row_pointers`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from staticgraph.schema import EDGE_INDEX, POINTERS


def exchanged(tensors: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` with those that are ``given`` in place of, or beside, them; without the row
    pointers of edges that are exchanged, unless they are given too."""
    edges = tensors.get(EDGE_INDEX)
    made = {**tensors, **given}
    if given.get(EDGE_INDEX, edges) is not edges:
        for name in POINTERS:
            if name not in given:
                made.pop(name, None)
    return made
