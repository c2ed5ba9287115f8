"""Recognises blocks ``[G, M, C]`` of rows of nodes in a graph, and what their rows are.

A linear layer of a block is the block of a linear layer of rows, so operations after
``to_dense_batch`` can be described on rows: as nested tuples, which a rewrite that fits turns into
calls, and one that does not discards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.nn.context.dense_layout import laid_out, placed
from staticgraph.rewrites.attention.axes import COLUMN, Axes, Stretch, arguments, moved
from staticgraph.rewrites.attention.key_masks import same_places
from staticgraph.rewrites.captured_graph.canonical_ops import (
    DIV,
    LINEAR,
    MUL,
    Call,
    is_call,
    is_method,
    shape,
)

_PRODUCTS = (torch.matmul, torch.bmm, operator.matmul, Tensor.matmul)


class DenseBlock(NamedTuple):
    """A tensor that holds a block's entries.

    Attributes:
        rows: the description of its rows: a node, or a tuple of a kind of call, its operand's rows
            and its arguments.
        axes: the position of its entries in ``[G, M, columns]``.
        columns: the number of columns of the rows.
    """

    rows: Any
    axes: Axes
    columns: int

    @property
    def whole_rows(self) -> bool:
        """Whether the last dimension is all columns in their order."""
        return self.axes.dims[-1] == (Stretch(COLUMN, self.columns),) and not self.axes.start


class DenseBlockReader:
    """Reads the blocks of one layout.

    Attributes:
        layout: the call that placed the nodes of the first block that was read; None before.
    """

    def __init__(self) -> None:
        self.layout: Call | None = None
        self._known: dict[Call, DenseBlock | None] = {}

    def find_block(self, node: Any) -> DenseBlock | None:
        """A node as a block of rows; None if it is something else, or of another layout."""
        if node not in self._known:
            self._known[node] = self._read(node)
        return self._known[node]

    def _read(self, node: Any) -> DenseBlock | None:
        if is_call(node, laid_out):
            return self._laid_out(node)
        if is_call(node, LINEAR):
            return linear(self.find_block(node.args[0]), node)
        if is_call(node, MUL, DIV) and isinstance(node.args[1], int | float):
            return times(self.find_block(node.args[0]), node)
        step = moved(node)
        return None if step is None else turned(self.find_block(step[0]), step[1])

    def _laid_out(self, node: Call) -> DenseBlock | None:
        rows, places, _, groups, width = node.args
        sizes = shape(rows)
        layout = places.args[0] if is_call(places, operator.getitem) else None
        if not is_call(layout, placed) or sizes is None or len(sizes) < 2:
            return None
        if self.layout is None:
            self.layout = layout
        elif not same_places(self.layout, layout):
            return None
        columns = math.prod(sizes[1:])
        axes = Axes.from_sizes(("graph", groups), ("place", width), (COLUMN, columns))
        split = axes.view([groups, width, *sizes[1:]])
        return split and DenseBlock(rows if len(sizes) == 2 else ("flat", rows), split, columns)


def linear(block: DenseBlock | None, node: Call) -> DenseBlock | None:
    """A linear layer of a block; None unless the block has whole rows."""
    columns = (shape(node) or (0,))[-1]
    if block is None or not block.whole_rows:
        return None
    after = Axes((*block.axes.dims[:-1], *Axes.from_sizes((COLUMN, columns)).dims))
    return DenseBlock(("linear", block.rows, *node.args[1:]), after, columns)


def times(block: DenseBlock | None, node: Call) -> DenseBlock | None:
    """A block multiplied or divided by a number."""
    number = node.args[1] if node.target is MUL else 1 / node.args[1]
    return block and block._replace(rows=("times", block.rows, number))


def turned(block: DenseBlock | None, turn: Callable[[Axes], Axes | None]) -> DenseBlock | None:
    """A block with its entries moved by ``turn``."""
    axes = None if block is None else turn(block.axes)
    return None if block is None or axes is None else block._replace(axes=axes)


def without_factor(block: DenseBlock) -> tuple[DenseBlock, float]:
    """A block without the numbers it was multiplied by, and their product."""
    factor, rows = 1.0, block.rows
    while isinstance(rows, tuple) and rows[0] == "times":
        _, rows, by = rows
        factor *= by
    return block._replace(rows=rows), factor


def product(node: Any) -> tuple[Call, Call, list[int], list[int], list[int]] | None:
    """Reads a matrix product: its operands, the orders in which they are ``[..., row, summed]`` and
    ``[..., summed, column]``, and the order of the result's dimensions."""
    if is_call(node, *_PRODUCTS) or is_method(node, "matmul", "bmm", "__matmul__"):
        operands = arguments(node, "input", "mat2" if is_call(node, torch.bmm) else "other")
        if operands is None:
            return None
        first, second = operands
        number = len(shape(node) or ())
        if len(shape(first) or ()) != number or len(shape(second) or ()) != number:
            return None
        plain = list(range(number))
        return first, second, plain, plain, plain
    return _einsum(node) if is_call(node, torch.functional.einsum, torch.einsum) else None


def _einsum(node: Call) -> tuple[Call, Call, list[int], list[int], list[int]] | None:
    if not node.args or node.kwargs:
        return None
    text, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    left, _, out = str(text).replace(" ", "").partition("->")
    names = left.split(",")
    if len(names) != 2 or len(operands) != 2 or "." in left or not out:
        return None
    first, second = names
    summed = [letter for letter in first if letter in second and letter not in out]
    shared = [letter for letter in out if letter in first and letter in second]
    rows = [letter for letter in first if letter in out and letter not in second]
    columns = [letter for letter in second if letter in out and letter not in first]
    if not len(summed) == len(rows) == len(columns) == 1 or len(out) != len(shared) + 2:
        return None
    letters = [*shared, *rows, *columns]
    return (
        *operands,
        [first.index(letter) for letter in (*shared, *rows, *summed)],
        [second.index(letter) for letter in (*shared, *summed, *columns)],
        [letters.index(letter) for letter in out],
    )


def is_copy(node: Any) -> bool:
    """Whether a call returns its operand unchanged."""
    same = is_method(node, "view", "reshape") and shape(node) == shape(node.args[0])
    return same or is_method(node, "contiguous", "clone")
