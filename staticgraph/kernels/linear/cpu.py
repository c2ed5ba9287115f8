"""``linear`` on the CPU for small layers: tiled products (:mod:`staticgraph.kernels.tiles`) on
torch's threads.

A oneDNN product takes 20 us before it starts, as long as the arithmetic for a batch of a few
graphs, and for a weight's gradient it copies both operands (docs/notes/kernels.md has figures).
Layers with a large weight are left to oneDNN, which cuts the weight into blocks that fit a cache.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels.addresses import LIKE, addresses, carray, pointer
from staticgraph.kernels.lanes import LANES
from staticgraph.kernels.threads import on_threads, portion, threads_for
from staticgraph.kernels.tiles import ROWS, WIDE, tile, wide_tile
from staticgraph.store.columns import Array

# Elements of a weight up to which its gradient and its input's gradient are computed here, for any
# number of rows: the time of a step is linear in its rows.
MOST_WEIGHTS = 1 << 14
# Elements of a weight that forward transposes (over eight rows, 512 x 512 would take 28 times as
# long as oneDNN), and multiplications it does: its bias and ReLU are separate passes.
MOST_TURNED = 1 << 13
MOST_PRODUCTS = 1 << 25
# Rows that a weight's gradient sums at a time: sums of fewer terms lose less precision.
STRETCH = 256
# Rows that a bias's gradient sums at a time, before the sums are added in float64.
BLOCK = 64


@kernel_part
def _product(
    thread: int,
    threads: int,
    left: Array,
    right: Array,
    rows: int,
    terms: int,
    columns: int,
    bias: Array,
    relu: bool,
    out: Array,
) -> None:
    """Computes ``out [rows, columns] = left [rows, terms] @ right [terms, columns]``, plus bias
    unless it is empty.

    The last tile of rows overlaps the previous one, which belongs to the same thread.
    """
    low, high = portion(rows - rows % ROWS, ROWS, thread, threads)
    if thread == threads - 1:
        high = rows
    whole = columns - columns % WIDE
    for first in range(low, high, ROWS):
        r = min(first, rows - ROWS)
        at, to = r * terms, r * columns
        for c in range(0, whole, WIDE):
            wide_tile(left, at, 1, terms, right, c, columns, terms, out, to + c, columns, False)
        for c in range(whole, columns, LANES):
            tile(left, at, 1, terms, right, c, columns, terms, out, to + c, columns, False)
    found = out.reshape(rows, columns)
    if len(bias) > 0:
        for r in range(low, high):
            for c in range(columns):
                found[r, c] += bias[c]
    if relu:
        for r in range(low, high):
            for c in range(columns):
                value = found[r, c]
                found[r, c] = 0 if value <= 0 else value


_products = on_threads(_product)


@kernel
def forward(
    like: float,
    at: tuple[int, ...],
    sizes: tuple[int, int, int],
    biased: bool,
    relu: bool,
    threads: int,
) -> None:
    """Runs forward on the addresses of ``x [R, I]``, ``weight [O, I]``, ``bias [O]``, scratch for
    the transposed weight, and ``out [R, O]``.

    NaN propagates through ReLU.
    """
    rows, terms, columns = sizes
    x = carray(pointer(at[0], like), rows * terms)
    weight = carray(pointer(at[1], like), (columns, terms))
    bias = carray(pointer(at[2], like), columns if biased else 0)
    turned = carray(pointer(at[3], like), (terms, columns))
    out = carray(pointer(at[4], like), rows * columns)
    for o in range(columns):
        for i in range(terms):
            turned[i, o] = weight[o, i]
    right = turned.reshape(-1)
    _products(threads, (x, right, rows, terms, columns, bias, relu, out))


@kernel
def input_gradient(
    like: float, at: tuple[int, ...], sizes: tuple[int, int, int], threads: int
) -> None:
    """Computes the input gradient on the addresses of ``grad [R, O]``, ``weight [O, I]`` and
    ``dx [R, I]``."""
    rows, terms, columns = sizes
    grad = carray(pointer(at[0], like), rows * terms)
    weight = carray(pointer(at[1], like), terms * columns)
    out = carray(pointer(at[2], like), rows * columns)
    _products(threads, (grad, weight, rows, terms, columns, out[:0], False, out))


@kernel_part
def _weight_gradient(
    thread: int,
    threads: int,
    grad: Array,
    x: Array,
    rows: int,
    height: int,
    columns: int,
    out: Array,
    sums: Array,
) -> None:
    """Computes one thread's rows of ``out``, and the sums of its blocks of rows of ``grad``."""
    of_row = grad.reshape(rows, height)
    begin, end = portion(len(sums), 1, thread, threads)
    for block in range(begin, end):
        into = sums[block]
        into[:] = 0
        for r in range(block * BLOCK, min((block + 1) * BLOCK, rows)):
            for o in range(height):
                into[o] += of_row[r, o]
    low, high = portion(height, ROWS, thread, threads)
    whole = columns - columns % WIDE
    if rows == 0:
        out[:] = 0
    for first in range(0, rows, STRETCH):
        count, adds = min(STRETCH, rows - first), first > 0
        g, right = first * height, first * columns
        for r in range(low, high, ROWS):
            a, to = g + r, r * columns
            for c in range(0, whole, WIDE):
                b = right + c
                wide_tile(grad, a, height, 1, x, b, columns, count, out, to + c, columns, adds)
            for c in range(whole, columns, LANES):
                b = right + c
                tile(grad, a, height, 1, x, b, columns, count, out, to + c, columns, adds)


_weight_gradients = on_threads(_weight_gradient)


@kernel
def weight_gradient(
    like: float, at: tuple[int, ...], sizes: tuple[int, int, int], threads: int
) -> None:
    """Computes the weight gradient on the addresses of ``grad [R, O]``, ``x [R, I]``,
    ``dweight [O, I]`` and ``dbias [O]``."""
    rows, height, columns = sizes
    grad = carray(pointer(at[0], like), rows * height)
    x = carray(pointer(at[1], like), rows * columns)
    out = carray(pointer(at[2], like), height * columns)
    dbias = carray(pointer(at[3], like), height)
    sums = np.empty(((rows + BLOCK - 1) // BLOCK, height), grad.dtype)
    _weight_gradients(threads, (grad, x, rows, height, columns, out, sums))
    total = np.zeros(height)
    for block in range(len(sums)):
        for o in range(height):
            total[o] += sums[block, o]
    for o in range(height):
        dbias[o] = total[o]


def _threads(sizes: tuple[int, int, int]) -> int:
    """Returns the number of threads, counting ``2 * LANES`` multiplications as one number of a
    pass."""
    rows, terms, columns = sizes
    return threads_for(rows * terms * columns // (2 * LANES))


def product_serves(rows: int, terms: int, columns: int) -> bool:
    """Returns whether a product over rows is computed here."""
    return rows >= ROWS and columns % LANES == 0 and terms * columns <= MOST_WEIGHTS


def layer_serves(rows: int, terms: int, columns: int) -> bool:
    """Returns whether a layer's forward is computed here."""
    few = terms * columns <= MOST_TURNED and rows * terms * columns <= MOST_PRODUCTS
    return few and product_serves(rows, terms, columns)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Computes ``x @ weight.T + bias``, with ReLU if requested, for sizes that
    :func:`layer_serves`."""
    rows, terms, columns = x.size(0), x.size(1), weight.size(0)
    out, turned = x.new_empty(rows, columns), x.new_empty(terms, columns)
    x, weight = x.contiguous(), weight.contiguous()
    at = addresses(x, weight, bias, turned, out)
    sizes = rows, terms, columns
    forward(LIKE[x.dtype], at, sizes, bias is not None, relu, _threads(sizes))
    return out


def gradient_of_input(grad: Tensor, weight: Tensor) -> Tensor:
    """Computes ``grad @ weight``, for sizes that :func:`product_serves`."""
    grad, weight = grad.contiguous(), weight.contiguous()
    rows, terms, columns = grad.size(0), grad.size(1), weight.size(1)
    out = grad.new_empty(rows, columns)
    sizes = rows, terms, columns
    input_gradient(LIKE[grad.dtype], addresses(grad, weight, out), sizes, _threads(sizes))
    return out


def weight_serves(height: int, columns: int) -> bool:
    """Returns whether the gradient of a weight ``[O, I]`` is computed here."""
    return height % ROWS == 0 and columns % LANES == 0 and height * columns <= MOST_WEIGHTS


def gradient_of_weight(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Computes ``grad.T @ x`` and ``grad.sum(0)``, for sizes that :func:`weight_serves`."""
    grad, x = grad.contiguous(), x.contiguous()
    rows, height, columns = grad.size(0), grad.size(1), x.size(1)
    out, dbias = grad.new_empty(height, columns), grad.new_empty(height)
    sizes = rows, height, columns
    weight_gradient(LIKE[grad.dtype], addresses(grad, x, out, dbias), sizes, _threads(sizes))
    return out, dbias
