"""Observes calls of ``torch.utils.checkpoint`` as they begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint

__all__ = ["checkpoints_told"]

# Where a non-reentrant checkpoint begins: the first of these that a release has (2.15 moved it; the
# older name calls the newer one there).
_BEGINNINGS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)


@contextmanager
def checkpoints_told(tell: Callable[[], None]) -> Iterator[None]:
    """Calls ``tell`` whenever a checkpoint begins in the block, in either of its two forms.

    Raises:
        AttributeError: this torch has neither entry point.
    """
    module = torch.utils.checkpoint
    function: Any = module.CheckpointFunction
    name = next((name for name in _BEGINNINGS if hasattr(module, name)), _BEGINNINGS[0])
    stock = getattr(module, name)

    def telling(inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps an entry point of torch's checkpoints to call ``tell`` first."""

        def call(*args: Any, **kwargs: Any) -> Any:
            """Calls ``tell``, then the original."""
            tell()
            return inner(*args, **kwargs)

        return call

    setattr(module, name, telling(stock))
    function.apply = staticmethod(telling(function.apply))
    try:
        yield
    finally:
        setattr(module, name, stock)
        del function.apply
