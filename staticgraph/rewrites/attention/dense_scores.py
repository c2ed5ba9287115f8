"""Reads how attention over a block computes its weights: products, scale, mask.

It reads from the softmax upwards, or from the arguments of ``scaled_dot_product_attention``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.rewrites.attention.axes import arguments
from staticgraph.rewrites.attention.dense_blocks import (
    DenseBlock,
    DenseBlockReader,
    is_copy,
    product,
    turned,
)
from staticgraph.rewrites.attention.key_masks import KeyMask, forbids, is_number, key_mask
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DIV,
    DROPOUT,
    MUL,
    Call,
    is_call,
    is_method,
    shape,
)


class DenseScores(NamedTuple):
    """Scores before the softmax: ``q`` and ``k`` with axes ``[..., place, column]``, the number
    by which their product is multiplied, and the mask of keys."""

    q: DenseBlock
    k: DenseBlock
    scale: float
    mask: KeyMask | None


class OddBlocks(Exception):
    """The single obstacle to a rewrite, and the node that causes it."""

    def __init__(self, reason: str, node: Call | None = None) -> None:
        super().__init__(reason)
        self.node = node


class ScoreReader:
    """Reads scores over the blocks of one layout."""

    def __init__(self, blocks: DenseBlockReader) -> None:
        self.blocks = blocks

    def under(self, node: Call) -> DenseScores | None:
        """The scores that a softmax is over; see :meth:`at`."""
        return self.read_scores(node, 1.0, None)

    def of_operator(
        self, node: Call, q: DenseBlock | None, k: DenseBlock | None
    ) -> tuple[DenseScores, float, Call]:
        """Reads ``scaled_dot_product_attention``: the scores, the dropout probability, the call.

        Raises:
            OddBlocks: it is causal, has no mask, or is not over rows of nodes.
        """
        by_name = dict(node.kwargs)
        for place, name in enumerate(("attn_mask", "dropout_p", "is_causal"), 3):
            if len(node.args) > place:
                by_name[name] = node.args[place]
        if by_name.get("is_causal") or by_name.get("enable_gqa"):
            raise OddBlocks("causal attention, or queries that share keys")
        if q is None or k is None:
            raise OddBlocks("queries and keys are not both linear layers of rows of nodes")
        mask = by_name.get("attn_mask")
        if mask is None:
            raise OddBlocks("it has no mask: padded places take part")
        scale = by_name.get("scale")
        width = (shape(by_name.get("query", (*node.args, None)[0])) or (1,))[-1]
        dense_mask = key_mask(mask)
        if dense_mask is not None and dense_mask.kind == "leave":
            dense_mask = None
        scores = DenseScores(q, k, width**-0.5 if scale is None else scale, dense_mask)
        return scores, by_name.get("dropout_p", 0.0), node

    def of_softmax(self, node: Call) -> tuple[float, Call, DenseBlock, list[int]]:
        """Reads how a softmax is used: the dropout probability of the weights, the product with the
        values, the values, and the order of the product's dimensions.

        Raises:
            OddBlocks: the weights are used in an unknown way.
        """
        dropout, weights = 0.0, node
        while True:
            if len(weights.users) != 1:
                raise OddBlocks("its weights are read elsewhere")
            (user,) = weights.users
            if is_call(user, DROPOUT) and not dropout:
                dropout, weights = user.args[1], user
            elif is_copy(user):
                weights = user
            else:
                break
        pair = product(user)
        if pair is None or pair[0] is not weights:
            raise OddBlocks("there is an operation between the weights and their sum", user)
        _, values, _, order_b, order = pair
        block = turned(self.blocks.find_block(values), lambda axes: axes.permute(order_b))
        if block is None:
            raise OddBlocks("its values are no linear layer of rows of nodes", user)
        return dropout, user, block, order

    def read_scores(self, node: Call, scale: float, mask: Any) -> DenseScores | None:
        """The scores that a softmax is over; None if they do not come from a block.

        Raises:
            OddBlocks: they do, but in an unknown form.
        """
        if is_method(node, "masked_fill") or is_call(node, torch.masked_fill, Tensor.masked_fill):
            operands = arguments(node, "input", "mask", "value")
            if operands is None:
                return None
            base, where, number = operands
            scores = self.read_scores(base, scale, mask or ("leave", where))
            if scores and (not forbids(number) or mask):
                raise OddBlocks("its scores are masked in a way that is not known", node)
            return scores
        if is_call(node, torch.where):
            operands = arguments(node, "condition", "input", "other")
            if operands is None:
                return None
            where, base, number = operands
            kind = "keep"
            if isinstance(base, int | float) or is_number(base):
                base, number, kind = number, base, "leave"
            scores = self.read_scores(base, scale, mask or (kind, where))
            if scores and (not forbids(number) or mask):
                raise OddBlocks("its scores are masked in a way that is not known", node)
            return scores
        if is_call(node, MUL, DIV) and isinstance(node.args[1], int | float):
            by = node.args[1] if node.target is MUL else 1 / node.args[1]
            return self.read_scores(node.args[0], scale * by, mask)
        if is_call(node, ADD):
            for base, added in (node.args, node.args[::-1]):
                scores = self.read_scores(base, scale, mask or ("added", added))
                if scores is not None:
                    if mask:
                        raise OddBlocks("something is added to its scores", node)
                    return scores
            return None
        if is_call(node, torch.baddbmm) and len(node.args) == 3 and not node.kwargs:
            added, first, second = node.args
            return self._scored(node, (first, second), scale, mask or ("added", added))
        pair = product(node)
        if pair is None:
            return self.read_scores(node.args[0], scale, mask) if is_copy(node) else None
        return self._scored(node, pair[:2], scale, mask, pair[2:])

    def _scored(
        self, node: Call, pair: Any, scale: float, mask: Any, orders: Any = None
    ) -> DenseScores | None:
        q, k = (self.blocks.find_block(operand) for operand in pair)
        if q is None or k is None:
            return None
        number = len(q.axes.dims)
        order_a, order_b, order = orders or (range(number), range(number), list(range(number)))
        if list(order) != list(range(number)):
            raise OddBlocks("its scores are turned", node)
        first, second = q.axes.permute(order_a), k.axes.permute(order_b)
        if first is None or second is None or mask is None:
            raise OddBlocks("it has no mask: padded places take part", node)
        second = second.swap(-1, -2)
        assert second is not None
        kind, source = mask
        dense_mask = key_mask(source)
        if dense_mask is None or dense_mask.kind != kind:
            raise OddBlocks("its mask is not the one of to_dense_batch", node)
        return DenseScores(q._replace(axes=first), k._replace(axes=second), scale, dense_mask)

    def refuse_odd(self, node: Call) -> None:
        """Refuses a product of blocks that leads to a softmax in an unknown way.

        Raises:
            OddBlocks: there is such a product.
        """
        left, user = [(node, before, 0) for before in node.all_input_nodes], node
        while left:
            user, before, depth = left.pop()
            pair = product(before)
            if pair is not None and None not in (
                self.blocks.find_block(pair[0]),
                self.blocks.find_block(pair[1]),
            ):
                raise OddBlocks("there is an operation between the weights and their scores", user)
            if depth < 8 and shape(before) == shape(node):
                left += [(before, operand, depth + 1) for operand in before.all_input_nodes]
