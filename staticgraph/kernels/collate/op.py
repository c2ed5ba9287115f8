"""``collate`` as an operator of torch, so that a recording or a compiled step holds it whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from staticgraph.kernels.collate.arguments import Arguments
from staticgraph.kernels.collate.reference import collate_reference
from staticgraph.kernels.register import operator


def _on_cuda(*arguments: Any) -> None:
    from staticgraph.kernels.collate import gpu

    gpu.collate(*arguments)


_collate = operator(
    "collate(Tensor ids, Tensor[] structure, Tensor[] columns, SymInt[] levels, SymInt[] widths, "
    "SymInt[] kinds, SymInt positions, Tensor(a!)[] out) -> ()",
    cpu=collate_reference,
    cuda=_on_cuda,
    fake=lambda *_: None,
)


def collate(ids: Tensor, arguments: Arguments) -> None:
    """Fills the arrays of a batch from the ids of its graphs, on the device that holds them.

    The result is, bit for bit, what :func:`staticgraph.batches.collation.collate.fill` writes on
    the host.

    Args:
        ids: ``[G]`` int32: positions in the store, then -1. Together they must fit the bucket;
            that is for the host to see to, which knows all sizes.
        arguments: what to read and where to write.
    """
    _collate(ids, *arguments)
