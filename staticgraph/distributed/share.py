"""The contribution of one rank's batch to a loss that is the mean over all ranks' rows."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Share(NamedTuple):
    """A rank's part of a mean: the mean is the sum of all ``total`` over the sum of all ``weight``.

    Both are divided by the number of physical values, so neither grows with the batch. This number
    is the same on all ranks, since they take the same bucket at the same step.

    Attributes:
        total: the sum of the loss over the real, labelled values, 0-dim; this is differentiated.
        weight: the number of these values, 0-dim; 0 for a batch of only padding.
        added: a scalar that the loss adds once, detached; it is part of ``total``, with the weight
            of the batch's values. None without.
        rows, row_weight: sum and number of other rows, whose mean over all ranks the loss adds;
            not yet part of ``total``. None without.
    """

    total: Tensor
    weight: Tensor
    added: Tensor | None = None
    rows: Tensor | None = None
    row_weight: Tensor | None = None

    def detach(self) -> Share:
        """The share detached from the autograd graph."""
        return Share(*(None if each is None else each.detach() for each in self))  # pyright: ignore[reportArgumentType]
