"""What one rank's batch adds to a loss that is the mean over all ranks' rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Share(NamedTuple):
    """A rank's part of a mean: the mean is the sum of all ``total`` over the sum of all ``weight``.

    Both are divided by the number of physical values, which all ranks have alike, since they take
    the same bucket at the same step; so neither grows with the batch.

    Attributes:
        total: the sum of the loss over the real, labelled values, 0-dim; what is differentiated.
        weight: how many these were, 0-dim; 0 for a batch of padding alone.
    """

    total: Tensor
    weight: Tensor

    def detach(self) -> Share:
        """Without the graph of autograd."""
        return Share(self.total.detach(), self.weight.detach())
