"""BatchNorm over the real rows, one operator each for forward and backward; fuses ReLU and sums."""

from __future__ import annotations

from torch import Tensor

from staticgraph.kernels.batch_norm import Running, batch_norm, batch_norm_handed_on
from staticgraph.nn.fused.layer import Fused
from staticgraph.nn.norm.batch_norm import COUNTED, MaskedBatchNorm1d, check_not_single


class FusedBatchNorm1d(Fused, MaskedBatchNorm1d):
    """Takes the place of :class:`MaskedBatchNorm1d`, with the same state."""

    def forward(self, input: Tensor) -> Tensor:
        """``[N, F]`` to the same, over real rows."""
        return self.joined(input)

    def joined(
        self,
        input: Tensor,
        *,
        relu: bool = False,
        addend: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """``residual + relu(norm(input + addend))``; everything but the norm is optional."""
        count = self._count(input)
        if count is None:
            input = input if addend is None else input + addend
            out = MaskedBatchNorm1d.forward(self, input)
            out = out.relu() if relu else out
            return out if residual is None else residual + out
        return batch_norm(
            input,
            self.weight,
            self.bias,
            count,
            eps=self.eps,
            relu=relu,
            addend=addend,
            residual=residual,
            running=self._running(),
        )[0]

    def handing_on(
        self, input: Tensor, addend: Tensor, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``residual + norm(input + addend)``, and the addend for later readers (see
        :func:`staticgraph.nn.fused.conv.handing_on`)."""
        count = self._count(input)
        if count is None:
            return self.joined(input, addend=addend, residual=residual), addend
        return batch_norm_handed_on(
            input,
            addend,
            self.weight,
            self.bias,
            count,
            eps=self.eps,
            residual=residual,
            running=self._running(),
        )

    def _count(self, input: Tensor) -> Tensor | None:
        """Returns how many rows are real; None where the stock code must run."""
        batch, count = self.batch, None
        if batch is None:
            reason = "no batch is bound: it ran outside the runner"
        elif not self.training and self.running_mean is not None:
            reason = "evaluation reads the running statistics, which is one stock operator"
        elif input.dim() != 2 or self.weight is None:
            reason = "input of three dimensions, or a norm without weights"
        else:
            rows = self._staticgraph.rows_under(self, input)
            if rows is not None and rows.counted in COUNTED:
                check_not_single(input, self._staticgraph.real_rows(rows))
                count = getattr(batch, COUNTED[rows.counted])
            reason = None if count is not None else "rows that are not the batch's own"
        return count if self.use(reason) else None

    def _running(self) -> Running | None:
        """The statistics to update in training; None if there are none."""
        if self.running_mean is None or not self.training:
            return None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        return Running(self.running_mean, self.running_var, self.num_batches_tracked, self.momentum)
