"""``collate`` as a torch operator, so that a recorded or compiled step contains it as one node."""

from __future__ import annotations

from torch import Tensor

from staticgraph.kernels.collate.arguments import Arguments
from staticgraph.kernels.collate.reference import collate_reference
from staticgraph.kernels.register import operator

_collate = operator(
    "collate(Tensor ids, Tensor[] structure, Tensor[] columns, SymInt[] levels, SymInt[] widths, "
    "SymInt[] paddings, bool apart, bool paired, Tensor(a!)[] out) -> ()",
    cpu=collate_reference,
    cuda="collate.gpu:collate",
    fake=lambda *_: None,
).overload


def collate(ids: Tensor, arguments: Arguments) -> None:
    """Fills the arrays of a batch from the ids of its graphs, on the device that holds them.

    The result is bit for bit that of :func:`staticgraph.batches.collation.collate.fill` on the
    host.

    Args:
        ids: ``[G]`` int32: positions in the store, followed by -1 for padding graphs. The graphs
            must fit the bucket together; the host, which knows all sizes, has to ensure that.
        arguments: what to read and where to write.
    """
    _collate(ids, *arguments)
