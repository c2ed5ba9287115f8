"""BatchNorm over the real rows of a padded batch.

Padding rows that enter the mean and the variance change every output and, through the running
statistics, every later evaluation: with garbage in the padding by a factor of a thousand. Here both
are taken over the rows that the batch's mask calls real; running statistics, momentum and the
unbiased variance come out as in torch on the unpadded batch (Ioffe and Szegedy 2015, algorithm 1).
Padding rows of the output are zero.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.nn.context import BatchContext


class MaskedBatchNorm1d(torch.nn.BatchNorm1d):
    """Takes the place of ``torch.nn.BatchNorm1d`` in a converted model, with the same state.

    Which rows are real is told by the leading size: ``[N, C]`` nodes, ``[E, C]`` edges, ``[G, C]``
    graphs.

    Raises:
        ValueError: the leading size is none of the three.
    """

    _staticgraph: BatchContext

    def forward(self, input: Tensor) -> Tensor:
        batch = self._staticgraph.batch
        from_batch = self.training or self.running_mean is None
        if batch is None or not from_batch:
            return super().forward(input)
        if batch.real is None:
            return self._masked(input, batch.mask_of(input))
        # Outside a compiled step the shapes are free: real rows come first, so the stock kernel
        # runs over just those, three times as fast on a CPU as the masked arithmetic.
        rows = getattr(batch.real, f"{batch.level_of(input)}s")
        out = super().forward(input[:rows])
        return F.pad(out, (*(0, 0) * (out.dim() - 1), 0, len(input) - rows))

    def _masked(self, input: Tensor, mask: Tensor) -> Tensor:
        """``input`` is ``[R, C]`` or ``[R, C, L]``; ``mask`` ``[R]`` bool."""
        dims = [0] if input.dim() == 2 else [0, 2]
        shape = (1, -1) if input.dim() == 2 else (1, -1, 1)
        mask = mask.view(-1, *(1,) * (input.dim() - 1))
        values = input if input.dtype == torch.float64 else input.float()
        count = mask.sum() * (1 if input.dim() == 2 else input.size(2))
        safe = count.clamp(min=1).to(values.dtype)
        values = torch.where(mask, values, 0)
        mean = values.sum(dims) / safe
        centred = torch.where(mask, values - mean.view(shape), 0)
        var = centred.square().sum(dims) / safe
        if self.running_mean is not None and self.training:
            self._update_running(mean.detach(), var.detach(), count)
        out = centred * (var + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            out = out * self.weight.view(shape) + torch.where(mask, self.bias.view(shape), 0)
        return out.to(input.dtype)

    def _update_running(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """As torch does; a batch of padding alone leaves the statistics as they are."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        seen = count > 0
        self.num_batches_tracked.add_(seen)
        if self.momentum is None:
            factor = 1.0 / self.num_batches_tracked.clamp(min=1).to(mean.dtype)
        else:
            factor = self.momentum
        factor = torch.where(seen, factor, 0.0)
        unbiased = var * (count / (count - 1).clamp(min=1)).to(var.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor.to(mean.dtype))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor.to(mean.dtype))
