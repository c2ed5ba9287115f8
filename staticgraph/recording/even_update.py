"""A recorded optimizer step in pieces of even size.

The problem: torch's fused optimizers give each 65,536 numbers of a tensor to one thread block, and
each launch 36 tensors, so the weights of a small model keep a few blocks busy for long: 101 us of a
GINE step of 5x300 on an H200. Here the same kernels receive each tensor as several views, large
ones first, and take 43 us. They compute number by number, so results are the same bits. Views are
made where a step is recorded and in the runs before it, not in replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import TorchDispatchMode

# Numbers in a piece, a multiple of what torch's kernels load at once.
PIECE = 8192
ATEN = torch.ops.aten
FUSED = frozenset({ATEN._fused_adam_, ATEN._fused_adamw_})


class EvenUpdate(TorchDispatchMode):
    """A ``with`` block in which fused Adam and AdamW see their tensors in pieces."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in FUSED:
            args = in_pieces(args)
        return func(*args, **(kwargs or {}))


def in_pieces(columns: Sequence[list[Tensor]]) -> list[list[Tensor]]:
    """Returns lists of pieces, the largest tensors first.

    Args:
        columns: parameters, gradients, two or three lists of state (the third may be empty), and
            step counts, which the pieces of a tensor share.
    """
    *columns, steps = columns
    pieces: list[list[Tensor]] = [[] for _ in columns]
    counts: list[Tensor] = []
    for i in sorted(range(len(steps)), key=lambda i: -columns[0][i].numel()):
        whole = [column[i] for column in columns if column]
        if all(tensor.is_contiguous() for tensor in whole):
            cut = [tensor.view(-1).split(PIECE) for tensor in whole]
        else:
            cut = [(tensor,) for tensor in whole]
        for column, parts in zip(pieces, cut, strict=False):
            column.extend(parts)
        counts += [steps[i]] * len(cut[0])
    return [*pieces, counts]
