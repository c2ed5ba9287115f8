"""Calls of ``torch.utils.checkpoint``, seen as they begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint

__all__ = ["checkpoints_told"]

# Where one without reentrance begins: the first that a release has (2.15 moved it; the older name
# calls the newer there).
_BEGINNINGS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)


@contextmanager
def checkpoints_told(tell: Callable[[], None]) -> Iterator[None]:
    """Calls ``tell`` wherever a checkpoint begins in the block, in either of its two forms.

    Raises:
        AttributeError: this torch has neither beginning.
    """
    module = torch.utils.checkpoint
    function: Any = module.CheckpointFunction
    name = next((name for name in _BEGINNINGS if hasattr(module, name)), _BEGINNINGS[0])
    stock = getattr(module, name)

    def telling(inner: Callable[..., Any]) -> Callable[..., Any]:
        """A beginning of torch's checkpoints that tells first."""

        def call(*args: Any, **kwargs: Any) -> Any:
            """Tells, then begins as before."""
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
