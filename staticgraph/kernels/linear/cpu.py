"""Products of a linear layer on a CPU by oneDNN, where it is faster than torch's other library.

torch multiplies float32 matrices with the library that it was built with, often MKL, which takes
twice as long as oneDNN on some processors and no longer on others. No shape tells which, so a layer
and its weight's gradient are timed, once per process, number of threads and pair of widths.
"""

from __future__ import annotations

import time
from functools import cache
from itertools import product as product_of

import numpy as np
import torch
from torch import Tensor

from staticgraph.internals.dispatch import onednn_linear, undispatched

# Rows and most columns of the layer that is timed, and how often. The fastest call of each library
# counts, since noise only adds. Wider layers gain as much as one of 128 columns, narrower ones
# less: oneDNN copies for the weight's gradient, which costs as much as a product of 32 columns.
TIMED_ROWS, TIMED_WIDTH, ROUNDS = 2048, 128, 9
# What oneDNN has to be faster by. Choices should not change between processes: on an AMD EPYC with
# AVX2 it is 1.12 times as fast, on one with AVX-512 2 and, for the weight's gradient, 1.25 times.
GAIN = 1.18
# Multiplications below which torch's smaller overhead wins.
SMALL = 1 << 20


def onednn_product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes ``a @ b.T + bias`` in float32, without autograd; operands may be transposed views.

    oneDNN has no fast loop for a second operand with gaps, such as a slice of a wider weight
    (289 ms instead of 0.1, AMD EPYC, 2026-11-30), and copies a first operand that is transposed, so
    the narrower of two is the first.
    """
    if _transposed(a) and len(b) < len(a):
        return onednn_product(b, a).t().contiguous()
    dense = b if b.is_contiguous() or _transposed(b) else b.contiguous()
    bias = None if bias is None else bias.contiguous()  # its stride is not read
    assert onednn_linear is not None
    return onednn_linear(a, dense, bias, "none", [], "")


def _transposed(matrix: Tensor) -> bool:
    return matrix.t().is_contiguous() and not matrix.is_contiguous()


def onednn_gains(rows: int, inputs: int, outputs: int, of_weight: bool = False) -> bool:
    """Whether the products of a layer of this size are faster by oneDNN: its own and that of its
    input's gradient, or that of its weight's gradient.

    ``torch.backends.mkldnn.flags(enabled=False)`` keeps torch's.
    """
    if rows * inputs * outputs < SMALL or not torch.backends.mkldnn.enabled:
        return False
    widths = [min(TIMED_WIDTH, 1 << (width - 1).bit_length()) for width in (inputs, outputs)]
    return _gains(torch.get_num_threads(), *widths)[of_weight]


@cache
def _gains(threads: int, inputs: int, outputs: int) -> tuple[bool, bool]:
    """Times both kinds of products by both libraries, with the current ``threads``."""
    if onednn_linear is None:
        return False, False
    with undispatched(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        x, grad = torch.ones(TIMED_ROWS, inputs), torch.ones(TIMED_ROWS, outputs)
        weight = torch.ones(outputs, inputs)
        kinds = [[(x, weight), (grad, weight.t())], [(grad.t(), x.t())]]
        libraries = [lambda a, b: a @ b.t(), onednn_product]
        least = np.full((len(kinds), len(libraries)), np.inf)
        for _ in range(ROUNDS):
            for (kind, products), (library, product) in product_of(
                enumerate(kinds), enumerate(libraries)
            ):
                began = time.perf_counter()
                for operands in products:
                    product(*operands)
                seconds = time.perf_counter() - began
                least[kind, library] = min(least[kind, library], seconds)
    layer, weights = (torchs > GAIN * onednns for torchs, onednns in least.tolist())
    return layer, weights
