"""Products of a linear layer on a CPU by oneDNN, where it is faster than torch's other library.

torch multiplies float32 matrices with the library that it was built with, often MKL, which takes
twice as long as oneDNN on some processors and no longer on others. No shape tells which, so a layer
is timed once per process.
"""

from __future__ import annotations

import time
from functools import cache

import torch
from torch import Tensor

from staticgraph.internals.dispatch import onednn_linear, undispatched

# Rows and columns of the layer that is timed, and how often. The fastest call of each library
# counts, since noise only adds.
TIMED_ROWS, TIMED_WIDTH, ROUNDS = 2048, 64, 9
# What oneDNN has to save: less is within noise, and choices should not change between processes.
GAIN = 1.25
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


def onednn_gains(rows: int, inputs: int, outputs: int) -> bool:
    """Whether the products of a layer of this size are faster by oneDNN.

    ``torch.backends.mkldnn.flags(enabled=False)`` keeps torch's.
    """
    if rows * inputs * outputs < SMALL or not torch.backends.mkldnn.enabled:
        return False
    return _gains(torch.get_num_threads())


@cache
def _gains(threads: int) -> bool:
    """Times the products of a layer and of its gradients by both libraries, with the current
    ``threads``."""
    if onednn_linear is None:
        return False
    with undispatched(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        x, weight = torch.ones(TIMED_ROWS, TIMED_WIDTH), torch.ones(TIMED_WIDTH, TIMED_WIDTH)
        layer = [(x, weight), (x, weight.t()), (x.t(), x.t())]
        libraries = [lambda a, b: a @ b.t(), onednn_product]
        least = [float("inf")] * 2
        for _ in range(ROUNDS):
            for library, product in enumerate(libraries):
                began = time.perf_counter()
                for operands in layer:
                    product(*operands)
                least[library] = min(least[library], time.perf_counter() - began)
    return least[0] > GAIN * least[1]
