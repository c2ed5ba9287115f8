"""Products of a linear layer on a CPU: torch's or oneDNN's, whichever is faster on this machine.

torch multiplies float32 matrices with the library that it was built with, often MKL, which on some
processors takes twice as long as oneDNN and on others less. No shape tells which; so each kind and
size of product is timed once per machine, for a few milliseconds at its first call, and the choice
is kept in the user's cache folder: later processes take the same library and get the same bits.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from staticgraph.files import atomic, own_cache

FILE = "products.json"
# Interleaved calls of each library; the fastest counts, since noise only adds.
ROUNDS = 5
# oneDNN's operator is private to torch and may be missing. It is taken where it is at least this
# much faster: a smaller gain is within noise.
GAIN = 1.05


def _onednn() -> Any:
    """Returns Inductor's CPU lowering of a linear layer, or None where this torch has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


ONEDNN = _onednn()


def _by_onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes ``a @ b.T + bias``; either operand may be a transposed view.

    oneDNN has no fast loop for a second operand with gaps, such as a slice of a wider weight:
    ``[128, 64]`` of ``[128, 192]`` took 590 ms instead of 0.2 (one CPU core, 2026-11-22).
    """
    dense = b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()
    bias = None if bias is None else bias.contiguous()  # its stride is not read
    return ONEDNN(a, dense, bias, "none", [], "")


def _weight_by_onednn(grad: Tensor, x: Tensor) -> Tensor:
    """Computes ``grad.T @ x``; oneDNN copies a transposed first operand, so the narrower one comes
    first."""
    if grad.size(1) <= x.size(1):
        return _by_onednn(grad.t(), x.t())
    return _by_onednn(x.t(), grad.t()).t().contiguous()


def _layer_by(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A layer by a product; oneDNN's own ReLU would turn NaN into 0, and is no faster."""

    def layer(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        """``[N, I]`` to ``[N, O]``."""
        out = product(x, weight, bias)
        return out.relu_() if relu else out

    return layer


Product = Callable[..., Tensor]
# Each kind of product by torch and by oneDNN.
PRODUCTS: dict[str, tuple[Product, Product]] = {
    "layer": (_layer_by(torch.nn.functional.linear), _layer_by(_by_onednn)),
    "input": (torch.mm, lambda grad, weight: _by_onednn(grad, weight.t())),
    "weight": (lambda grad, x: grad.t() @ x, _weight_by_onednn),
}


class Choices:
    """Whether oneDNN computes a product, by kind and size; read from the cache folder once."""

    def __init__(self) -> None:
        self._known: dict[str, bool] | None = None

    def onednn(self, kind: str, operands: tuple[Any, ...]) -> bool:
        """Returns the choice for a product, timing it if it is not known."""
        if ONEDNN is None:
            return False
        if self._known is None:
            self._known = self._read()
        key = self._key(kind, *operands[:2])
        if key not in self._known:
            self._known[key] = _is_faster(PRODUCTS[kind], operands)
            self._write()
        return self._known[key]

    @staticmethod
    def _key(kind: str, a: Tensor, b: Tensor) -> str:
        """Rows count by their power of two: libraries change their loops with sizes, not rows.

        A virtual machine's processor may be called by its family alone ("AMD EPYC"), so the vector
        width is part of the key.
        """
        size = f"{len(a).bit_length()}:{a.size(1)}x{b.size(0)}x{b.size(1)}"
        machine = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
        return f"{machine}, torch {torch.__version__}, {torch.get_num_threads()}: {kind} {size}"

    def _read(self) -> dict[str, bool]:
        with suppress(OSError, ValueError, own_cache.NotOurs):
            values: Any = json.loads(self._path().read_text())
            return {str(key): bool(value) for key, value in values.items()}
        return {}

    def _write(self) -> None:
        assert self._known is not None
        with suppress(OSError, own_cache.NotOurs), atomic.writing(self._path()) as file:
            file.write(json.dumps({**self._read(), **self._known}, indent=1).encode())

    @staticmethod
    def _path() -> Path:
        return own_cache.folder() / FILE


def processor() -> str:
    """The processor's name, as Linux states it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _is_faster(products: tuple[Product, Product], operands: tuple[Any, ...]) -> bool:
    """Times both products on these operands; whether the second is the faster one."""
    least = [float("inf"), float("inf")]
    for product in products:
        product(*operands)
    for _ in range(ROUNDS):
        for which, product in enumerate(products):
            began = time.perf_counter()
            product(*operands)
            least[which] = min(least[which], time.perf_counter() - began)
    return least[1] * GAIN < least[0]


CHOICES = Choices()


def layer(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Computes ``x @ weight.T + bias`` in float32, with ReLU if requested."""
    operands = x, weight, bias, relu
    return PRODUCTS["layer"][CHOICES.onednn("layer", operands)](*operands)


def gradient_of_input(grad: Tensor, weight: Tensor) -> Tensor:
    """Computes ``grad @ weight`` in float32."""
    return PRODUCTS["input"][CHOICES.onednn("input", (grad, weight))](grad, weight)


def gradient_of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """Computes ``grad.T @ x`` in float32."""
    return PRODUCTS["weight"][CHOICES.onednn("weight", (grad, x))](grad, x)
