"""The base of every fused layer: the current batch, and the reason for running the stock code."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.kernels.dropout_sum import draw_seed, dropout_sum
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.leaf import leaves


class Fused:
    """Mixin for a stock layer's subclass; ``_staticgraph`` is set when a model is converted."""

    _staticgraph: BatchContext
    stock_reason: str | None = None
    # The layer's number in its model, set when it is converted: it separates the random streams of
    # layers that share one seed.
    _number: int = 0

    @property
    def batch(self) -> StaticBatch | None:
        """The batch that is bound in this thread; None outside the runner."""
        return self._staticgraph.batch

    def dropped(
        self, x: Tensor, site: int, p: float, *, relu: bool = False, residual: Tensor | None = None
    ) -> Tensor:
        """``residual + dropout(relu(x))`` in one pass; ``site`` below 256 distinguishes the layer's
        own dropouts."""
        return dropout_sum(x, residual, self.seed(x.device), self.site(site), p=p, relu=relu)

    def seed(self, device: torch.device) -> Tensor:
        """``[1]`` int64, shared by all layers of a forward."""
        return self._staticgraph.once("dropout seed", lambda: draw_seed(device))

    def site(self, own: int) -> int:
        """Returns the number, unique in the model, of the layer's dropout ``own`` (below 256)."""
        return self._number * 256 + own

    def prepare(self) -> None:
        """Called once after the class was changed, to set up what the fused form needs."""

    def use(self, reason: str | None) -> bool:
        """Records why the stock code runs; returns True if the fused form can run.

        A compiled step records nothing: attributes that it reads and writes would become guards.
        """
        if not torch.compiler.is_compiling():
            self.stock_reason = reason
        elif leaves():  # the traced graph is rewritten, with more knowledge than the class has
            return False
        return reason is None
