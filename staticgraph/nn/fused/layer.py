"""What every fused layer has: the batch, and the reason for running the stock code."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.kernels.dropout_sum import draw_seed, dropout_sum
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.leaf import leaves


class Fused:
    """Mixed into a stock layer's subclass; ``_staticgraph`` is set when a model is converted."""

    _staticgraph: BatchContext
    stock_reason: str | None = None
    # The layer's place in its model, set when it is converted: what tells apart whose randomness
    # is whose where all draw one seed.
    _number: int = 0

    @property
    def batch(self) -> StaticBatch | None:
        """The present batch; None outside the runner."""
        return self._staticgraph.batch

    def dropped(
        self, x: Tensor, site: int, p: float, *, relu: bool = False, residual: Tensor | None = None
    ) -> Tensor:
        """``residual + dropout(relu(x))`` in one pass; ``site`` below 256 tells the layer's own
        dropouts apart."""
        return dropout_sum(x, residual, self.seed(x.device), self.site(site), p=p, relu=relu)

    def seed(self, device: torch.device) -> Tensor:
        """``[1]`` int64, which all layers of a forward share."""
        return self._staticgraph.once("dropout seed", lambda: draw_seed(device))

    def site(self, own: int) -> int:
        """The number of one of the layer's dropouts, ``own`` below 256, in its model."""
        return self._number * 256 + own

    def prepare(self) -> None:
        """Called once, after the class was exchanged, to note what the stock layer chose."""

    def use(self, reason: str | None) -> bool:
        """Notes why the stock code runs; True where there is no reason to.

        A compiled step notes nothing: what it reads and writes would become its guards.
        """
        if not torch.compiler.is_compiling():
            self.stock_reason = reason
        elif leaves():  # the traced graph is rewritten, which knows more than the class
            return False
        return reason is None
