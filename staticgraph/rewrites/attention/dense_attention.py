"""Rewrites attention over ``to_dense_batch`` in the user's own code to run graph by graph on a CPU.

The problem: user code lays nodes out in a block ``[G, M, C]``, projects it, attends under its mask
(by ``scaled_dot_product_attention``, its own softmax or ``nn.MultiheadAttention``), and reads the
rows back with the mask. The block is as wide as any batch that fits the bucket may need. The idea:
a linear layer of a block is the block of a linear layer of rows, and the contents of masked keys
and empty places are never read. So the operations that lead to queries, keys and values are applied
to rows, the operator attends to them, and the operations on the way back are applied to rows again;
no block is left.

Blocks are read in :mod:`staticgraph.rewrites.attention.dense_blocks`, scores in
:mod:`staticgraph.rewrites.attention.dense_scores`, masks in
:mod:`staticgraph.rewrites.attention.key_masks`.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.dropout_sum import draw_seed
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.nn.context.dense_layout import laid_out, placed, read_back
from staticgraph.rewrites.attention.axes import COLUMN, Axes, Stretch, moved
from staticgraph.rewrites.attention.dense_blocks import (
    DenseBlock,
    DenseBlockReader,
    linear,
    times,
    turned,
    without_factor,
)
from staticgraph.rewrites.attention.dense_scores import DenseScores, OddBlocks, ScoreReader
from staticgraph.rewrites.attention.key_masks import KeyMask, key_mask, same_places
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DIV,
    DROPOUT,
    LINEAR,
    MUL,
    Call,
    argument,
    dtype,
    is_call,
    is_method,
    shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.sizes.attention import CPU_WIDEST as WIDEST
from staticgraph.text.how_many import how_many

NAME = "graph_attention"
# The first dropout site used here; other dropouts of the forward are numbered from zero.
SITES = 1 << 21
_OF_MODULE = tuple(inspect.signature(F.multi_head_attention_forward).parameters)
_SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax)


def starts_of(ptr: Tensor, counts: Tensor) -> Tensor:
    """``[G + 1]`` int32 from ``ptr [G + 1]`` and the real counts; padding graphs have no nodes."""
    return torch.minimum(ptr, counts.view(-1)[0]).int()


def rewrite(captured: Captured) -> None:
    """Rewrites every attention over a block of the batch's own graphs."""
    if not captured.facts or captured.target.device != "cpu":
        return
    layouts = [n for n in captured.graph.nodes if is_call(n, laid_out) and n.users]
    if not layouts:
        return
    number = 0
    for node in list(captured.graph.nodes):
        if not node.users or not (_is_attention(node) or _is_softmax(node)):
            continue  # erased meanwhile, or another operation
        reader = _Reader(captured)
        try:
            number += reader.attempt(node, number)
        except OddBlocks as odd:
            captured.miss(NAME, node, str(odd), odd.node)


def _is_attention(node: Call) -> bool:
    return is_call(node, F.scaled_dot_product_attention, F.multi_head_attention_forward)


def _is_softmax(node: Call) -> bool:
    if not is_call(node, *_SOFTMAX) and not is_method(node, "softmax"):
        return False
    if not node.args:
        return False
    dim = argument(node, 1, "dim")
    return shape(node) is not None and dim in (-1, len(shape(node) or ()) - 1)


class _Reader:
    """Reads one attention from a graph, and replaces it by the operator."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.blocks = DenseBlockReader()
        self.scores = ScoreReader(self.blocks)

    # ------------------------------------------------------------------ reading

    def attempt(self, node: Call, number: int) -> int:
        """Returns 1 if a node was rewritten, 0 if it has nothing to do with a block.

        Raises:
            OddBlocks: it is attention over a block, but does not fit.
        """
        if is_call(node, F.multi_head_attention_forward):
            return self._of_module(node, number)
        if _is_attention(node):
            names = ("query", "key", "value")
            by_name = dict(zip(names, node.args, strict=False)) | node.kwargs
            q, k, values = (self.blocks.find_block(by_name.get(name)) for name in names)
            if q is None and k is None:
                return 0
            scores, dropout, end = self.scores.of_operator(node, q, k)
            heads = self._lead(q, k, values)
            out = q.axes.dims[:-1] + values.axes.dims[-1:] if q and values else ()
        else:
            scores = self.scores.under(node.args[0])
            if scores is None:
                self.scores.refuse_odd(node)
                return 0
            dropout, end, values, order = self.scores.of_softmax(node)
            heads = self._lead(scores.q, scores.k, values)
            ordered = Axes(scores.q.axes.dims[:-1] + values.axes.dims[-1:]).permute(order)
            out = ordered.dims if ordered else ()
        if scores.mask is not None and not scores.mask.fits(scores.q.axes):
            raise OddBlocks("its mask is not the one of to_dense_batch")
        self._check(node, scores.mask, dropout)
        assert values is not None
        width = heads[1]
        rows = self._packed(scores, values, heads)
        attended = DenseBlock(("attention", rows), Axes(out), heads[0] * width)
        back, tail = self._way_back(end, attended)
        self._emit(node, back, tail, heads, number, dropout)
        return 1

    def _of_module(self, node: Call, number: int) -> int:
        """Handles ``nn.MultiheadAttention``, which a trace keeps as one call."""
        by_name = dict(zip(_OF_MODULE, node.args, strict=False)) | node.kwargs
        query, mask = by_name["query"], key_mask(by_name.get("key_padding_mask"))
        block = self.blocks.find_block(query)
        if block is None:
            return 0
        if not query is by_name["key"] is by_name["value"]:
            raise OddBlocks("its queries, keys and values are not of the same rows")
        odd = ("bias_k", "bias_v", "add_zero_attn", "use_separate_proj_weight", "attn_mask")
        for name in odd:
            if by_name.get(name) not in (None, False):
                raise OddBlocks(f"{name} is given")
        dims, groups = block.axes.dims, Axes(block.axes.dims[1:2] + block.axes.dims[:1])
        if len(dims) != 3 or not block.whole_rows:
            raise OddBlocks("its queries, keys and values are not of whole rows of nodes")
        # Scores are [G, M, M] per head, and the mask is [G, M] of their keys.
        if mask is None or mask.kind == "keep" or mask.axes != groups:
            raise OddBlocks("its mask is not the one of to_dense_batch")
        dropout = by_name["dropout_p"] if by_name.get("training", True) else 0.0
        users = list(node.users)
        if len(users) != 1 or not is_call(users[0], operator.getitem) or users[0].args[1] != 0:
            raise OddBlocks("its weights are read elsewhere")
        self._check(users[0], mask, dropout)
        heads = by_name["num_heads"], block.columns // by_name["num_heads"]
        rows = ("linear", block.rows, by_name["in_proj_weight"], by_name["in_proj_bias"])
        out = ("linear", ("attention", rows), by_name["out_proj_weight"], by_name["out_proj_bias"])
        back, tail = self._way_back(users[0], DenseBlock(out, block.axes, block.columns))
        self._emit(node, back, tail, heads, number, dropout)
        return 1

    # ------------------------------------------------------------------ checks

    def _lead(self, q: Any, k: Any, v: Any) -> tuple[int, int]:
        """Returns the number of heads and their width.

        Raises:
            OddBlocks: queries, keys and values are not split into the same heads of one block.
        """
        if q is None or k is None or v is None:
            raise OddBlocks("its values are no linear layer of rows of nodes")
        lead, place, last = q.axes.dims[:-2], *q.axes.dims[-2:]
        for other in (k, v):
            if other.axes.dims[:-2] != lead or other.axes.dims[-2:] != (place, last):
                raise OddBlocks("queries, keys and values are split into different heads")
        assert self.blocks.layout is not None
        groups, width = self.blocks.layout.args[2:4]
        stretches = [stretch for dim in lead for stretch in dim]
        heads = [stretch for stretch in stretches if stretch.axis == COLUMN]
        rest = [stretch for stretch in stretches if stretch.axis != COLUMN]
        if place != (Stretch("place", width),) or rest != [Stretch("graph", groups)]:
            raise OddBlocks("it attends along something other than the nodes of a graph")
        if len(last) != 1 or last[0].axis != COLUMN or last[0].step != 1 or len(heads) > 1:
            raise OddBlocks("the columns of a head are not adjacent")
        number = heads[0].size if heads else 1
        if heads and heads[0].step != last[0].size:
            raise OddBlocks("the columns of a head are not adjacent")
        return number, last[0].size

    def _check(self, node: Call, mask: KeyMask | None, dropout: Any) -> None:
        captured, layout = self.captured, self.blocks.layout
        assert layout is not None
        index, _, groups, width, whole = layout.args
        if captured.index(index) != "batch" or groups != captured.graphs:
            raise OddBlocks("its block is not one of the batch's own graphs")
        if not whole:
            raise OddBlocks("its block leaves nodes out (max_num_nodes)")
        if width > WIDEST:
            raise OddBlocks(
                f"its graphs have up to {how_many(width, 'node')}, where torch's products are "
                "faster"
            )
        if dropout and node in captured.differentiated:
            raise OddBlocks("its derivative is taken in the forward, and with dropout has none")
        if dtype(node) not in (torch.float32, torch.float64) or not 0 <= dropout < 1:
            raise OddBlocks("half precision, or all of the weights are dropped")
        if mask is None or not same_places(mask.layout, layout):
            raise OddBlocks("its mask is not the one of to_dense_batch")

    # ------------------------------------------------------------------ replacement

    def _packed(self, scores: DenseScores, values: DenseBlock, heads: tuple[int, int]) -> Any:
        """Rows ``[N, 3 * C]`` as nested tuples."""
        number, width = heads
        columns = number * width
        q, k, v = scores.q, scores.k, values
        factor = scores.scale * width**0.5
        q, by_q = without_factor(q)
        k, by_k = without_factor(k)
        factor *= by_q * by_k
        unscaled = abs(factor - 1) < 1e-12
        packed = unscaled and q.rows == k.rows == v.rows and q.columns == 3 * columns
        if packed and [part.axes.start for part in (q, k, v)] == [0, columns, 2 * columns]:
            return q.rows
        parts = []
        for part, by in ((q, 1.0 if unscaled else factor), (k, 1.0), (v, 1.0)):
            rows = part.rows
            if part.columns != columns:
                rows = ("cut", rows, part.axes.start, columns)
            parts.append(rows if by == 1 else ("times", rows, by))
        return ("beside", *parts)

    def _way_back(self, end: Call, block: DenseBlock) -> tuple[Call, Any]:
        """The node that returns to rows of nodes, and the description of these rows."""
        node = end
        while True:
            if len(node.users) != 1:
                raise OddBlocks("the block that it gives is read in several places")
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
                raise OddBlocks("what it gives is no row of a node again (out[mask])", user)
            if after is None:
                raise OddBlocks("its heads are joined in another order", user)
            node, block = user, after

    def _rows_at(self, back: Call, block: DenseBlock) -> Any:
        place = back.args[1]
        layout = place.args[0] if is_call(place, operator.getitem) else None
        assert self.blocks.layout is not None
        if not is_call(layout, placed) or not same_places(layout, self.blocks.layout):
            raise OddBlocks("it is read back by another block's mask", back)
        groups, width = self.blocks.layout.args[2:4]
        whole = block.axes.view([groups, width, block.columns])
        if whole is None or whole != Axes.from_sizes(
            ("graph", groups), ("place", width), (COLUMN, block.columns)
        ):
            raise OddBlocks("its heads are joined in another order", back)
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
            options |= {"seed": seed, "site": SITES + number}
        known: dict[Any, Call] = {}

        def make(what: Any) -> Call:
            """The graph node of one operand, made once; an existing node is returned unchanged."""
            if not isinstance(what, tuple):
                return what
            if what not in known:
                known[what] = attend(what) if what[0] == "attention" else call(*what)
            return known[what]

        def attend(what: Any) -> Call:
            """The operator over packed queries, keys and values."""
            return captured.before(back, graph_attention, make(what[1]), starts, **options)

        def call(kind: str, *args: Any) -> Call:
            """The graph node of one operation on its operand."""
            if kind == "beside":
                return captured.before(back, torch.cat, [make(part) for part in args], 1)
            below, *rest = args
            operand = make(below)
            if kind == "cut":
                return captured.before(back, torch.narrow, operand, 1, *rest)
            if kind == "flat":
                return captured.before(back, torch.flatten, operand, 1)
            function = {"linear": LINEAR, "times": MUL, "dropout": DROPOUT}[kind]
            return captured.before(back, function, operand, *rest, *[True] * (kind == "dropout"))

        new = make(rows)
        if shape(new) != shape(back):
            new = captured.before(back, Tensor.view, new, *(shape(back) or ()))
        unread = [*back.all_input_nodes]
        if captured.replace(back, new):
            captured.rewrote(NAME, node)
        while unread:  # drop_unread keeps dropout of the weights, which draws random numbers
            candidate = unread.pop()
            if not candidate.users and candidate.op in ("call_function", "call_method"):
                unread += candidate.all_input_nodes
                captured.graph.erase_node(candidate)
