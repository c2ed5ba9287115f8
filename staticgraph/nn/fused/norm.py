"""BatchNorm over the real rows, in one operator each way; ReLU and sums go along."""

from __future__ import annotations

from torch import Tensor

from staticgraph.kernels.batch_norm import batch_norm, update_running
from staticgraph.nn.batch_norm import MaskedBatchNorm1d
from staticgraph.nn.fused.layer import Fused


class FusedBatchNorm1d(Fused, MaskedBatchNorm1d):
    """Takes the place of :class:`MaskedBatchNorm1d`, with the same state."""

    def forward(self, input: Tensor) -> Tensor:
        return self.joined(input)

    def joined(
        self,
        input: Tensor,
        *,
        relu: bool = False,
        addend: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """``residual + relu(norm(input + addend))``; all but the norm where asked for."""
        batch, count = self.batch, None
        if batch is None:
            reason = "no batch is bound: it ran outside the runner"
        elif not self.training and self.running_mean is not None:
            reason = "evaluation reads the running statistics, which is one stock operator"
        elif input.dim() != 2 or self.weight is None:
            reason = "input of three dimensions, or a norm without weights"
        else:
            count = {
                batch.num_nodes: batch.num_real_nodes,
                batch.num_edges: batch.num_real_edges,
                batch.num_graphs: batch.num_real_graphs,
            }.get(input.size(0))
            reason = None if count is not None else "rows that are not the batch's own"
        if not self.use(reason):
            input = input if addend is None else input + addend
            out = MaskedBatchNorm1d.forward(self, input)
            out = out.relu() if relu else out
            return out if residual is None else residual + out
        assert count is not None
        out, mean, var = batch_norm(
            input,
            self.weight,
            self.bias,
            count,
            eps=self.eps,
            relu=relu,
            addend=addend,
            residual=residual,
        )
        if self.running_mean is not None and self.training:
            self._track(mean, var, count)
        return out

    def _track(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Moves the running statistics, as torch does."""
        assert self.batch is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        rows = int(count) if self.batch.real is not None and count.device.type == "cpu" else 0
        if rows and self.momentum is not None:
            # In eager mode on a CPU the operator's own overhead is 70 us, these four take 15.
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            share = self.momentum * rows / max(rows - 1, 1)
            self.running_var.mul_(1 - self.momentum)
            self.running_var.add_(var.to(self.running_var.dtype), alpha=share)
            return
        update_running(
            mean,
            var,
            count,
            self.running_mean,
            self.running_var,
            self.num_batches_tracked,
            self.momentum,
        )
