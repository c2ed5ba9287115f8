"""Attention over all nodes of a batch as one sequence, with a mask of which graph each belongs to.

torch's ``flex_attention`` skips the tiles of 128 by 128 that a block mask leaves out. Its own
``create_block_mask`` looks at every pair of nodes to find them; here nodes are ordered by graph, so
the key tiles that a tile of queries needs are contiguous, from where its first node's graph begins
to where its last node's graph ends. Both ends are two gathers from the batch, so the block mask is
made inside the recorded step, with a fixed shape and no host read. The relation is symmetric, so
the transposed lists that the backward needs are the same lists.

Invariant: a real node attends to the nodes of its graph, a padding node only to itself, so its
result is finite and no other node reads it. Not supported: dropout and second derivatives. On a CPU
torch refuses the backward (2.11 to 2.13), so there a reference replaces it, which obeys both the
mask and the list of tiles, over ``N * N`` entries.

Source: Dong et al. 2024, Flex Attention, arXiv 2412.05496.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.fakes import FakeTensor  # the memory probe's tensors
from staticgraph.sizes.attention import FLEX_TILE


class DocumentLayout(NamedTuple):
    """Which nodes may attend to which, and the tiles that hold them.

    Attributes:
        document: ``[N]`` int32, the graph of a real node, ``G + i`` for padding node ``i``.
        tiles: ``[1, 1, R]`` int32, how many tiles of keys each of the ``R`` tiles of queries needs.
        keys: ``[1, 1, R, R]`` int32, the indices of these tiles, the needed ones first.
    """

    document: Tensor
    tiles: Tensor
    keys: Tensor

    @classmethod
    def of(cls, batch: StaticBatch) -> DocumentLayout:
        """The mask of a batch; its shape depends on the bucket alone."""
        nodes, owner = batch.num_nodes, batch.batch
        own = torch.arange(nodes, device=owner.device)
        document = torch.where(batch.node_mask, owner, batch.num_graphs + own)
        first = torch.where(batch.node_mask, batch.ptr[owner], own) // FLEX_TILE
        last = torch.where(batch.node_mask, batch.ptr[owner + 1] - 1, own) // FLEX_TILE
        rows = -(-nodes // FLEX_TILE)
        tile = torch.arange(rows, device=owner.device)
        begin = first[tile * FLEX_TILE]
        end = last[(tile * FLEX_TILE + FLEX_TILE - 1).clamp(max=nodes - 1)]
        keys = (begin[:, None] + tile) % rows
        return cls(
            document.int(), (end - begin + 1).int()[None, None], keys.int()[None, None].contiguous()
        )

    def block_mask(self) -> BlockMask:
        """The mask for ``flex_attention``; every list is given, so it derives none."""
        document = self.document
        nodes = len(document)

        def same(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
            """Whether a query and a key are nodes of the same graph."""
            return document[query] == document[key]

        return BlockMask(
            seq_lengths=(nodes, nodes),
            kv_num_blocks=self.tiles,
            kv_indices=self.keys,
            full_kv_num_blocks=None,
            full_kv_indices=None,
            q_num_blocks=self.tiles,
            q_indices=self.keys,
            full_q_num_blocks=None,
            full_q_indices=None,
            BLOCK_SIZE=(FLEX_TILE, FLEX_TILE),
            mask_mod=same,
        )

    def allowed(self) -> Tensor:
        """``[N, N]`` bool: pairs within the listed tiles that the mask allows."""
        nodes, rows = len(self.document), self.tiles.shape[-1]
        listed = torch.arange(rows, device=self.tiles.device) < self.tiles[0, 0, :, None]
        held = torch.zeros_like(listed).scatter(1, self.keys[0, 0].long(), listed)
        wide = held.repeat_interleave(FLEX_TILE, 0, output_size=rows * FLEX_TILE)
        wide = wide.repeat_interleave(FLEX_TILE, 1, output_size=rows * FLEX_TILE)
        return wide[:nodes, :nodes] & (self.document[:, None] == self.document)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``[1, heads, N, D]`` each -> ``[1, heads, N, D]``."""
        if isinstance(q, FakeTensor):
            return _Shapes.apply(q, k, v)
        if q.device.type != "cuda":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed())
        fused = flex_attention if torch.compiler.is_compiling() else _compiled_alone()
        out = fused(q, k, v, block_mask=self.block_mask())
        assert isinstance(out, Tensor)
        return out


@cache
def _compiled_alone() -> Any:
    """``flex_attention`` compiled for steps that are not, which would otherwise materialise all
    ``N * N`` scores; for any number of nodes, so that the buckets share one compilation."""
    return torch.compile(flex_attention, fullgraph=True, dynamic=True)


class _Shapes(torch.autograd.Function):
    """Allocates what ``flex_attention`` does on CUDA, without arithmetic: for the memory probe,
    whose tensors have no data and cannot be compiled."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``[1, heads, N, D]`` without values; saves what the real kernel saves."""
        out = q.new_empty(q.shape)
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients in the shapes of queries, keys and values, without values."""
        q, k, v, _, lse = ctx.saved_tensors
        delta = lse.new_empty(lse.shape)
        dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
        del delta
        return dq, dk, dv
