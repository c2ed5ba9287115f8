"""torch losses whose own mean divides by weights instead of rows.

The mean of ``F.cross_entropy(..., weight=w, ignore_index=i)`` divides by the sum of the targets'
weights. With ``reduction="none"``, which a runner needs, it returns the weighted values alone, and
their mean over rows is another number: 1.20 instead of 0.73, and nothing fails. So if a loss calls
such a function with weights and returns no weights itself, a warning says so once, and a check
lists it. A loss that passes weights and returns them as well counts them twice, and is warned of,
too.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from staticgraph.errors import users_level

_STOCK = {F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.huber_loss}
_LOOKUPS = {Tensor.__getitem__, Tensor.index_select, torch.index_select, Tensor.take, torch.take}
_NO_TARGET = -100  # torch's own ignore_index
REMEDY = (
    "return (values, weights): F.cross_entropy(out, batch.y, reduction='none'), w[batch.y] for "
    "weights of classes, and batch.y != i for ignore_index=i; docs/losses.md has both"
)


class StockMeans(TorchFunctionMode):
    """Watches the calls of a loss while entered.

    Attributes:
        called: names of the functions that were called with weights, or with an ``ignore_index``
            that was passed or that occurs in the target.
        passed: whether any call passed either; what occurs in a target only real rows show.
        weights: the weights that they were called with.
        looked_up: the tensors that the loss itself indexed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.passed: bool = False
        self.weights: list[Tensor] = []
        self.looked_up: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _LOOKUPS:
            self.looked_up.append(args[0])
        if func not in _STOCK:
            return out
        arguments = inspect.signature(func).bind(*args, **kwargs).arguments
        if arguments.get("reduction", "mean") != "none":
            return out
        passed = _passes_weights(arguments)
        if not passed and not _ignores_targets(arguments):
            return out
        self.passed |= passed
        self.called.append(f"F.{func.__name__}")
        if arguments.get("weight") is not None:
            self.weights.append(arguments["weight"])
        return out


def _passes_weights(arguments: dict[str, Any]) -> bool:
    ignored = arguments.get("ignore_index", _NO_TARGET)
    return arguments.get("weight") is not None or ignored != _NO_TARGET


def _ignores_targets(arguments: dict[str, Any]) -> bool:
    target = arguments.get("target")
    indices = isinstance(target, Tensor) and not target.is_floating_point()
    return indices and bool((target == _NO_TARGET).any())  # pyright: ignore


def warn_of_stock_means(loss: Callable[..., Any], watch: StockMeans, weights: object) -> None:
    """Warns that a loss takes the mean over rows of what torch averages by weights.

    Or that the ``weights`` it returns, None without, are those that it already gave to torch.
    """
    if not watch.called:
        return
    name = getattr(loss, "__name__", type(loss).__name__)
    by = (
        f"{watch.called[0]} is given weights or targets of its ignore_index (-100 unless passed) "
        f"by the loss {name}"
    )
    if weights is None:
        warnings.warn(
            f"{by}: its own mean divides by the weights, the runner's by the rows. For plain PyG's "
            f"number {REMEDY}; to keep the mean over rows, return (values, "
            "torch.ones_like(values))",
            stacklevel=users_level(),
        )
    elif any(weight is other for weight in watch.weights for other in (*watch.looked_up, weights)):
        warnings.warn(
            f"{by}, which also returns these weights: they count twice. For plain PyG's number "
            f"leave weight= out of the call, and {REMEDY}",
            stacklevel=users_level(),
        )
