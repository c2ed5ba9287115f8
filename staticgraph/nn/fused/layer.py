"""What every fused layer has: the batch, and the reason for running the stock code."""

from __future__ import annotations

import torch

from staticgraph.batch import StaticBatch
from staticgraph.nn.context import BatchContext


class Fused:
    """Mixed into a stock layer's subclass; ``_staticgraph`` is set when a model is converted."""

    _staticgraph: BatchContext
    stock_reason: str | None = None

    @property
    def batch(self) -> StaticBatch | None:
        """The present batch; None outside the runner."""
        return self._staticgraph.batch

    def prepare(self) -> None:
        """Called once, after the class was exchanged, to note what the stock layer chose."""

    def use(self, reason: str | None) -> bool:
        """Notes why the stock code runs; True where there is no reason to.

        A compiled step notes nothing: what it reads and writes would become its guards.
        """
        if not torch.compiler.is_compiling():
            self.stock_reason = reason
        return reason is None


def unhooked(module: torch.nn.Module) -> bool:
    """Whether calling another method than ``forward`` skips no hook."""
    return not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
