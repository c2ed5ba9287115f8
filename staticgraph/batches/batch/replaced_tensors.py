"""A batch's tensors with some of them replaced.

Row pointers follow from the edges, and fused loops rely on that: if edges are replaced, pointers to
the previous ones would silently give wrong sums. So they are dropped, and made again where they are
needed (:mod:`staticgraph.batches.batch.row_pointers`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from staticgraph.schema import EDGE_INDEX, POINTERS


def exchanged(tensors: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns ``tensors`` updated with the ``given`` ones.

    The row pointers of replaced edges are dropped, unless they are given too.
    """
    edges = tensors.get(EDGE_INDEX)
    made = {**tensors, **given}
    if given.get(EDGE_INDEX, edges) is not edges:
        for name in POINTERS:
            if name not in given:
                made.pop(name, None)
    return made
