"""What many tests do alike: compare two models name by name, and train with the simplest parts.

Comparisons without tolerances are to the bit.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def assert_same_state(actual: nn.Module, expected: nn.Module | dict, **near: float) -> None:
    """Compares parameters and buffers with those of a model, or with a state."""
    state = expected if isinstance(expected, dict) else expected.state_dict()
    _compare(actual.state_dict(), state, near)


def assert_same_gradients(actual: nn.Module, expected: nn.Module, **near: float) -> None:
    """Compares gradients, where None is equal to None alone."""
    _compare(*({n: p.grad for n, p in m.named_parameters()} for m in (actual, expected)), near)


def _compare(actual: dict, expected: dict, near: dict[str, float]) -> None:
    torch.testing.assert_close(dict(actual), dict(expected), **(near or {"rtol": 0, "atol": 0}))


def sgd(model: nn.Module, rate: float, **options: Any) -> torch.optim.SGD:
    """Returns SGD over the parameters of a model."""
    return torch.optim.SGD(model.parameters(), rate, **options)


def adam(model: nn.Module, **options: Any) -> torch.optim.Adam:
    """Returns Adam over the parameters of a model."""
    return torch.optim.Adam(model.parameters(), **options)


@contextlib.contextmanager
def warned_of(words: str) -> Iterator[list[str]]:
    """Collects, repeated ones too, the warnings that have some words; filled at the end."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
    told += [str(w.message) for w in caught if words in str(w.message)]


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One update of plain torch."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def squared(out: torch.Tensor, batch: Any) -> torch.Tensor:
    """The squared error of each element."""
    return (out - batch.y).square()


def real_ids(batch: Any) -> list[int]:
    """Returns the numbers of a batch's graphs, without padding."""
    return batch.graph_ids[batch.graph_mask].tolist()


def same(left: Any, right: Any) -> bool:
    """Whether two states of dicts, lists and tensors are equal to the bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right
