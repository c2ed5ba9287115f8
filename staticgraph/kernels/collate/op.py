"""``collate`` as an operator of torch, so that a recording or a compiled step holds it whole."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.collate.arguments import Arguments
from staticgraph.kernels.collate.reference import collate_reference


@torch.library.custom_op("staticgraph::collate", mutates_args=("out",), device_types="cpu")
def _collate(
    ids: Tensor,
    structure: list[Tensor],
    columns: list[Tensor],
    levels: list[int],
    widths: list[int],
    kinds: list[int],
    positions: int,
    out: list[Tensor],
) -> None:
    collate_reference(ids, structure, columns, levels, widths, kinds, positions, out)


@_collate.register_kernel("cuda")
def _(ids, structure, columns, levels, widths, kinds, positions, out):
    from staticgraph.kernels.collate import gpu

    gpu.collate(ids, structure, columns, levels, widths, kinds, positions, out)


@_collate.register_fake
def _(ids, structure, columns, levels, widths, kinds, positions, out):
    return None


def collate(ids: Tensor, arguments: Arguments) -> None:
    """Fills the arrays of a batch from the ids of its graphs, on the device that holds them.

    The result is, bit for bit, what :func:`staticgraph.batches.collate.fill` writes on the host.

    Args:
        ids: ``[G]`` int32: positions in the store, then -1. Together they must fit the bucket;
            that is for the host to see to, which knows all sizes.
        arguments: what to read and where to write.
    """
    _collate(ids, *arguments)
