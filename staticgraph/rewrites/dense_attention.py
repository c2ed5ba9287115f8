"""Attention written by hand over ``to_dense_batch`` goes graph by graph on a CPU.

The problem: people lay nodes out in a block ``[G, M, C]``, project it, attend under its mask, by
``scaled_dot_product_attention``, a softmax of their own or ``nn.MultiheadAttention``, and take the
rows back with the mask. The block is as wide as any batch that fits the bucket may need. The
idea: a linear layer of a block is the block of a linear layer of rows, and what a masked key or an
empty place holds is never read. So what leads to queries, keys and values is done to the rows, the
operator attends to them, and what leads back is done to rows again; no block is left.

What is read of a block is in :mod:`staticgraph.rewrites.dense_blocks`, its mask in
:mod:`staticgraph.rewrites.key_masks`.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.dropout_sum import draw_seed
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.nn.context.dense_layout import laid_out, placed, read_back
from staticgraph.rewrites.axes import COLUMN, Axes, Stretch, moved
from staticgraph.rewrites.captured import Captured
from staticgraph.rewrites.dense_blocks import (
    Block,
    Blocks,
    is_copy,
    linear,
    product,
    times,
    turned,
    without_factor,
)
from staticgraph.rewrites.edge_terms import made
from staticgraph.rewrites.graph_attention import SITES, WIDEST, starts_of
from staticgraph.rewrites.key_masks import KeyMask, forbids, is_number, key_mask, same_places
from staticgraph.rewrites.words import (
    ADD,
    DIV,
    DROPOUT,
    LINEAR,
    MUL,
    Call,
    dtype,
    is_call,
    is_method,
    shape,
    tensor,
)

NAME = "graph_attention"
_OF_MODULE = tuple(inspect.signature(F.multi_head_attention_forward).parameters)
_SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax)


class _Scores(NamedTuple):
    """Weights before the softmax: ``q`` and ``k`` as nodes with axes ``[..., place, column]``."""

    q: Block
    k: Block
    scale: float
    mask: KeyMask | None


class _Odd(Exception):
    """The one thing that stands in the way, and the node that is it."""

    def __init__(self, reason: str, node: Call | None = None) -> None:
        super().__init__(reason)
        self.node = node


def rewrite(captured: Captured) -> None:
    """Every attention over a block of the batch's own graphs."""
    if not captured.facts or captured.target.device != "cpu":
        return
    found = [n for n in captured.graph.nodes if is_call(n, laid_out) and n.users]
    if not found:
        return
    number = 0
    for node in list(captured.graph.nodes):
        if not node.users or not (_is_attention(node) or _is_softmax(node)):
            continue  # erased by now, or another operation
        reader = _Reader(captured)
        try:
            number += reader.attempt(node, number)
        except _Odd as odd:
            captured.miss(NAME, node, str(odd), odd.node)


def _is_attention(node: Call) -> bool:
    return is_call(node, F.scaled_dot_product_attention, F.multi_head_attention_forward)


def _is_softmax(node: Call) -> bool:
    if not is_call(node, *_SOFTMAX) and not is_method(node, "softmax"):
        return False
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return shape(node) is not None and dim in (-1, len(shape(node) or ()) - 1)


class _Reader:
    """Reads one attention off a graph, and puts the operator in its place."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.blocks = Blocks()

    # ------------------------------------------------------------------ what is there

    def attempt(self, node: Call, number: int) -> int:
        """1 where a node was rewritten, 0 where it has nothing to do with a block.

        Raises:
            _Odd: it has, and does not fit.
        """
        if is_call(node, F.multi_head_attention_forward):
            return self._of_module(node, number)
        if _is_attention(node):
            q, k, v = (self.blocks.at(node.args[place]) for place in range(3))
            if q is None and k is None:
                return 0
            values, scores, dropout, end = v, *self._of_operator(node, q, k)
            heads = self._lead(q, k, values)
            out = q.axes.dims[:-1] + values.axes.dims[-1:] if q and values else ()
        else:
            scores = self.scores(node.args[0], 1.0, None)
            if scores is None:
                self._refuse_odd_scores(node)
                return 0
            dropout, end, values, order = self._of_softmax(node)
            heads = self._lead(scores.q, scores.k, values)
            given = Axes(scores.q.axes.dims[:-1] + values.axes.dims[-1:]).permute(order)
            out = given.dims if given else ()
        if scores.mask is not None and not scores.mask.fits(scores.q.axes):
            raise _Odd("its mask is not the one of to_dense_batch")
        self._check(node, scores.mask, dropout)
        width = heads[1]
        rows = self._packed(scores, values, heads)
        attended = Block(("attention", rows), Axes(out), heads[0] * width)
        back, tail = self._way_back(end, attended)
        self._emit(node, back, tail, heads, number, dropout)
        return 1

    def _of_module(self, node: Call, number: int) -> int:
        """``nn.MultiheadAttention``, which a trace keeps as one call."""
        given = dict(zip(_OF_MODULE, node.args, strict=False)) | node.kwargs
        query, mask = given["query"], key_mask(given.get("key_padding_mask"))
        block = self.blocks.at(query)
        if block is None:
            return 0
        if not query is given["key"] is given["value"]:
            raise _Odd("its queries, keys and values are not of the same rows")
        odd = ("bias_k", "bias_v", "add_zero_attn", "use_separate_proj_weight", "attn_mask")
        for name in odd:
            if given.get(name) not in (None, False):
                raise _Odd(f"{name} is given")
        dims, groups = block.axes.dims, Axes(block.axes.dims[1:2] + block.axes.dims[:1])
        if len(dims) != 3 or not block.whole_rows:
            raise _Odd("its queries, keys and values are not of whole rows of nodes")
        # Scores are [G, M, M] for each head, and the mask is [G, M] of their keys.
        if mask is None or mask.kind == "keep" or mask.axes != groups:
            raise _Odd("its mask is not the one of to_dense_batch")
        dropout = given["dropout_p"] if given.get("training", True) else 0.0
        users = list(node.users)
        if len(users) != 1 or not is_call(users[0], operator.getitem) or users[0].args[1] != 0:
            raise _Odd("its weights are read elsewhere")
        self._check(users[0], mask, dropout)
        heads = given["num_heads"], block.columns // given["num_heads"]
        rows = ("linear", block.rows, given["in_proj_weight"], given["in_proj_bias"])
        out = ("linear", ("attention", rows), given["out_proj_weight"], given["out_proj_bias"])
        back, tail = self._way_back(users[0], Block(out, block.axes, block.columns))
        self._emit(node, back, tail, heads, number, dropout)
        return 1

    def _of_operator(
        self, node: Call, q: Block | None, k: Block | None
    ) -> tuple[_Scores, float, Call]:
        given = dict(node.kwargs)
        for place, name in enumerate(("attn_mask", "dropout_p", "is_causal"), 3):
            if len(node.args) > place:
                given[name] = node.args[place]
        if given.get("is_causal") or given.get("enable_gqa"):
            raise _Odd("causal attention, or queries that share keys")
        if q is None or k is None:
            raise _Odd("queries and keys are not both linear layers of rows of nodes")
        mask = given.get("attn_mask")
        if mask is None:
            raise _Odd("it has no mask: padded places take part")
        scale = given.get("scale")
        width = (shape(node.args[0]) or (1,))[-1]
        found = key_mask(mask)
        if found is not None and found.kind == "leave":
            found = None
        scores = _Scores(q, k, width**-0.5 if scale is None else scale, found)
        return scores, given.get("dropout_p", 0.0), node

    def _of_softmax(self, node: Call) -> tuple[float, Call, Block, list[int]]:
        """Dropout of the weights, the product with the values, the values, and the order in which
        it gives its dimensions."""
        dropout, weights = 0.0, node
        while True:
            if len(weights.users) != 1:
                raise _Odd("its weights are read elsewhere")
            (user,) = weights.users
            if is_call(user, DROPOUT) and not dropout:
                dropout, weights = user.args[1], user
            elif is_copy(user):
                weights = user
            else:
                break
        pair = product(user)
        if pair is None or pair[0] is not weights:
            raise _Odd("something stands between the weights and their sum", user)
        _, values, _, order_b, order = pair
        block = turned(self.blocks.at(values), lambda axes: axes.permute(order_b))
        if block is None:
            raise _Odd("its values are no linear layer of rows of nodes", user)
        return dropout, user, block, order

    def scores(self, node: Call, scale: float, mask: Any) -> _Scores | None:
        """What a softmax is over; None where no block leads there.

        Raises:
            _Odd: one does, in a form that is not known.
        """
        if is_method(node, "masked_fill") or is_call(node, torch.masked_fill, Tensor.masked_fill):
            base, where, number = node.args
            found = self.scores(base, scale, mask or ("leave", where))
            if found and (not forbids(number) or mask):
                raise _Odd("its scores are masked in a way that is not known", node)
            return found
        if is_call(node, torch.where):
            where, base, number = node.args
            kind = "keep"
            if isinstance(base, int | float) or is_number(base):
                base, number, kind = number, base, "leave"
            found = self.scores(base, scale, mask or (kind, where))
            if found and (not forbids(number) or mask):
                raise _Odd("its scores are masked in a way that is not known", node)
            return found
        if is_call(node, MUL, DIV) and isinstance(node.args[1], int | float):
            by = node.args[1] if node.target is MUL else 1 / node.args[1]
            return self.scores(node.args[0], scale * by, mask)
        if is_call(node, ADD):
            for base, added in (node.args, node.args[::-1]):
                found = self.scores(base, scale, mask or ("added", added))
                if found is not None:
                    if mask:
                        raise _Odd("something is added to its scores", node)
                    return found
            return None
        if is_call(node, torch.baddbmm) and len(node.args) == 3 and not node.kwargs:
            added, first, second = node.args
            return self._scored(node, (first, second), scale, mask or ("added", added))
        pair = product(node)
        if pair is None:
            return self.scores(node.args[0], scale, mask) if is_copy(node) else None
        return self._scored(node, pair[:2], scale, mask, pair[2:])

    def _scored(
        self, node: Call, pair: Any, scale: float, mask: Any, orders: Any = None
    ) -> _Scores | None:
        q, k = (self.blocks.at(one) for one in pair)
        if q is None or k is None:
            return None
        number = len(q.axes.dims)
        order_a, order_b, order = orders or (range(number), range(number), list(range(number)))
        if list(order) != list(range(number)):
            raise _Odd("its scores are turned", node)
        first, second = q.axes.permute(order_a), k.axes.permute(order_b)
        if first is None or second is None or mask is None:
            raise _Odd("it has no mask: padded places take part", node)
        second = second.swap(-1, -2)
        assert second is not None
        kind, given = mask
        found = key_mask(given)
        if found is None or found.kind != kind:
            raise _Odd("its mask is not the one of to_dense_batch", node)
        return _Scores(q._replace(axes=first), k._replace(axes=second), scale, found)

    def _refuse_odd_scores(self, node: Call) -> None:
        """Says so where a product of blocks leads to a softmax by a way that is not known."""
        left, user = [(node, before, 0) for before in node.all_input_nodes], node
        while left:
            user, before, depth = left.pop()
            pair = product(before)
            if pair is not None and None not in (self.blocks.at(pair[0]), self.blocks.at(pair[1])):
                raise _Odd("something stands between the weights and their scores", user)
            if depth < 8 and shape(before) == shape(node):
                left += [(before, one, depth + 1) for one in before.all_input_nodes]

    # ------------------------------------------------------------------ whether it fits

    def _lead(self, q: Any, k: Any, v: Any) -> tuple[int, int]:
        """Heads and their width.

        Raises:
            _Odd: queries, keys and values are not of the same heads of the same block.
        """
        if q is None or k is None or v is None:
            raise _Odd("its values are no linear layer of rows of nodes")
        lead, place, last = q.axes.dims[:-2], *q.axes.dims[-2:]
        for other in (k, v):
            if other.axes.dims[:-2] != lead or other.axes.dims[-2:] != (place, last):
                raise _Odd("queries, keys and values are split into different heads")
        assert self.blocks.layout is not None
        groups, width = self.blocks.layout.args[2:4]
        stretches = [stretch for dim in lead for stretch in dim]
        heads = [one for one in stretches if one.axis == COLUMN]
        rest = [one for one in stretches if one.axis != COLUMN]
        if place != (Stretch("place", width),) or rest != [Stretch("graph", groups)]:
            raise _Odd("it attends along something else than the nodes of a graph")
        if len(last) != 1 or last[0].axis != COLUMN or last[0].step != 1 or len(heads) > 1:
            raise _Odd("the columns of a head do not stand beside each other")
        number = heads[0].size if heads else 1
        if heads and heads[0].step != last[0].size:
            raise _Odd("the columns of a head do not stand beside each other")
        return number, last[0].size

    def _check(self, node: Call, mask: KeyMask | None, dropout: Any) -> None:
        captured, layout = self.captured, self.blocks.layout
        assert layout is not None
        index, _, groups, width, whole = layout.args
        if captured.index(index) != "batch" or groups != captured.graphs:
            raise _Odd("its block is not one of the batch's own graphs")
        if not whole:
            raise _Odd("its block leaves nodes out (max_num_nodes)")
        if width > WIDEST:
            raise _Odd(f"its graphs have up to {width} nodes, where torch's products are faster")
        if node in captured.differentiated:
            raise _Odd("its derivative is taken in the forward, and has one of its own")
        if dtype(node) not in (torch.float32, torch.float64) or not 0 <= dropout < 1:
            raise _Odd("half precision, or all of the weights are dropped")
        if mask is None or not same_places(mask.layout, layout):
            raise _Odd("its mask is not the one of to_dense_batch")

    # ------------------------------------------------------------------ what takes its place

    def _packed(self, scores: _Scores, values: Block, heads: tuple[int, int]) -> Any:
        """Rows ``[N, 3 * C]`` as nested tuples."""
        number, width = heads
        columns = number * width
        q, k, v = scores.q, scores.k, values
        factor = scores.scale * width**0.5
        q, by_q = without_factor(q)
        k, by_k = without_factor(k)
        factor *= by_q * by_k
        one = abs(factor - 1) < 1e-12
        packed = one and q.rows == k.rows == v.rows and q.columns == 3 * columns
        if packed and [part.axes.start for part in (q, k, v)] == [0, columns, 2 * columns]:
            return q.rows
        parts = []
        for part, by in ((q, 1.0 if one else factor), (k, 1.0), (v, 1.0)):
            rows = part.rows
            if part.columns != columns:
                rows = ("cut", rows, part.axes.start, columns)
            parts.append(rows if by == 1 else ("times", rows, by))
        return ("beside", *parts)

    def _way_back(self, end: Call, block: Block) -> tuple[Call, Any]:
        """The node that gives rows of nodes again, and what they are."""
        node = end
        while True:
            if len(node.users) != 1:
                raise _Odd("the block that it gives is read in several places")
            (user,) = node.users
            if is_call(user, read_back):
                return user, self._rows_at(user, block)
            if is_call(user, LINEAR) and user.args[0] is node:
                after = linear(block, user)
            elif is_call(user, MUL, DIV) and isinstance(user.args[1], int | float):
                after = times(block, user)
            elif is_call(user, DROPOUT):
                after = block._replace(rows=("dropout", block.rows, user.args[1]))
            elif (step := moved(user)) is not None:
                after = turned(block, step[1])
            else:
                raise _Odd("what it gives is no row of a node again (out[mask])", user)
            if after is None:
                raise _Odd("its heads are joined in another order", user)
            node, block = user, after

    def _rows_at(self, back: Call, block: Block) -> Any:
        place = back.args[1]
        layout = place.args[0] if is_call(place, operator.getitem) else None
        assert self.blocks.layout is not None
        if not is_call(layout, placed) or not same_places(layout, self.blocks.layout):
            raise _Odd("it is read back by another block's mask", back)
        groups, width = self.blocks.layout.args[2:4]
        whole = block.axes.view([groups, width, block.columns])
        if whole is None or whole != Axes.of(
            ("graph", groups), ("place", width), (COLUMN, block.columns)
        ):
            raise _Odd("its heads are joined in another order", back)
        return block.rows

    def _emit(
        self, node: Call, back: Call, rows: Any, heads: tuple[int, int], number: int, dropout: float
    ) -> None:
        captured, layout = self.captured, self.blocks.layout
        assert layout is not None
        starts = captured.once("starts", starts_of, captured.facts["ptr"], captured.facts["counts"])
        options = {"heads": heads[0], "longest": layout.args[3], "p": dropout}
        if dropout:
            seed = captured.once("seed", draw_seed, torch.device(captured.target.device))
            options |= {"seed": seed, "site": 2 * SITES + number}
        known: dict[Any, Call] = {}

        def make(what: Any) -> Call:
            if not isinstance(what, tuple):
                return what
            if what not in known:
                known[what] = attend(what) if what[0] == "attention" else call(*what)
            return known[what]

        def attend(what: Any) -> Call:
            packed = make(what[1])
            value, columns = tensor(packed), heads[0] * heads[1]
            assert value is not None
            out = captured.before(back, graph_attention, packed, starts, like=back, **options)
            with torch.enable_grad():
                out.meta["example_value"] = value.narrow(1, 0, columns).clone()
            return out

        def call(kind: str, *args: Any) -> Call:
            if kind == "beside":
                return made(captured, back, torch.cat, [make(one) for one in args], 1)
            below, *rest = args
            operand = make(below)
            if kind == "cut":
                return made(captured, back, torch.narrow, operand, 1, *rest)
            if kind == "flat":
                return made(captured, back, torch.flatten, operand, 1)
            function = {"linear": LINEAR, "times": MUL, "dropout": DROPOUT}[kind]
            return made(captured, back, function, operand, *rest, *[True] * (kind == "dropout"))

        new = make(rows)
        if shape(new) != shape(back):
            new = made(captured, back, Tensor.view, new, *(shape(back) or ()))
        captured.rewrote(NAME, node)
        unread = [*back.all_input_nodes]
        captured.replace(back, new)
        while unread:  # the weights' dropout draws, so nobody else takes it out
            one = unread.pop()
            if not one.users and one.op in ("call_function", "call_method"):
                unread += one.all_input_nodes
                captured.graph.erase_node(one)
