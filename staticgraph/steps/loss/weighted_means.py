"""Losses of torch whose own mean divides by weights, and not by rows.

``F.cross_entropy(..., weight=w, ignore_index=i)`` has as its mean the sum over the targets' weights
by the sum of these weights. With ``reduction="none"``, as a runner asks for, it gives the values
alone, and their mean over rows is another number: 1.20 for 0.73. Nothing fails. So where a loss
calls such a function with weights and returns no weights itself, it is said once; a preflight
compares both means.
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

from staticgraph.steps.loss.mean_loss import LossTerms

_STOCK = {F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.huber_loss}
_NO_TARGET = -100  # torch's own ignore_index
REMEDY = (
    "return (values, weights): F.cross_entropy(out, batch.y, reduction='none'), w[batch.y] for "
    "weights of classes, and batch.y != i for ignore_index=i; docs/losses.md has both"
)


class StockMeans(TorchFunctionMode):
    """Watches the calls of a loss while entered.

    Args:
        scaled: let each such call give values whose mean over rows is the function's own mean.

    Attributes:
        called: names of the functions that were called with weights, or with an ``ignore_index``
            that was named or that a target has.
    """

    def __init__(self, scaled: bool = False) -> None:
        super().__init__()
        self.called: list[str] = []
        self._scaled = scaled

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func not in _STOCK:
            return out
        given = inspect.signature(func).bind(*args, **kwargs).arguments
        if given.get("reduction", "mean") != "none" or not _weighs(given):
            return out
        self.called.append(f"F.{func.__name__}")
        if not self._scaled:
            return out
        own = func(**{**given, "reduction": "mean"})
        mean = out.mean()
        return torch.where(mean == 0, out, out * (own / mean))


def _weighs(given: dict[str, Any]) -> bool:
    ignored = given.get("ignore_index", _NO_TARGET)
    target = given.get("target")
    if given.get("weight") is not None or ignored != _NO_TARGET:
        return True
    indices = isinstance(target, Tensor) and not target.is_floating_point()
    return indices and bool((target == ignored).any())  # pyright: ignore


def warn_of_stock_means(loss: Callable[..., Any], called: list[str], result: Any) -> None:
    """Says that a loss takes the mean over rows of what torch averages by weights."""
    if not called or isinstance(result, tuple):
        return
    warnings.warn(
        f"{called[0]} is given weights or an ignore_index by the loss "
        f"{getattr(loss, '__name__', type(loss).__name__)}: its own mean divides by the weights, "
        f"the runner's by the rows. For plain PyG's number {REMEDY}; to keep the mean over rows, "
        "return (values, torch.ones_like(values))",
        stacklevel=2,
    )


def stock_mean(loss: Callable[[Any, Any], Any], out: Any, data: Any) -> tuple[Tensor, Tensor, str]:
    """The mean over rows of a loss on an unpadded batch, that with the functions' own means in it,
    and which function it was; empty where none is called so."""
    with StockMeans() as watch:
        terms = LossTerms.of(loss(out, data))
    mean = terms.mean()
    if not watch.called or terms.weights is not None:
        return mean, mean, ""
    with StockMeans(scaled=True):
        own = LossTerms.of(loss(out, data)).mean()
    return mean, own, watch.called[0]
