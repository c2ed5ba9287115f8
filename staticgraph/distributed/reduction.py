"""Reduces the gradients of all ranks to the gradient of the mean over all ranks' real rows.

The problem: the batches of ranks differ in the number of real rows and of missing labels, so the
mean of the ranks' means is not the mean. The idea: each rank differentiates its *sum*
(:class:`Share`); the gradients are summed over ranks in a flat buffer that also holds how many rows
each rank had, and everything is divided by the total number of rows. This takes one message per
step, no rank waits for a count beforehand, and a rank with only padding takes part with weight 0.

The running statistics of norms that see only one rank's rows (``BatchNorm``, unlike
``SyncBatchNorm``) are sent in the same buffer and become the mean over ranks, by weight, so that
all ranks keep the same model.

Invariants: afterwards loss, gradients and statistics are equal bit for bit on every rank; the same
parameters have a gradient on every rank (on a CPU this is exchanged at each step; on CUDA it
follows from the recorded step, which is the same on every rank).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from staticgraph.distributed.ranks import Ranks
from staticgraph.internals.dispatch import copy_all
from staticgraph.text.how_many import how_many


class Share(NamedTuple):
    """A rank's part of a mean: the mean is the sum of all ``total`` over the sum of all ``weight``.

    Both are divided by the same number on every rank, whatever the bucket of its batch.

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


DOUBLE = (torch.float64, torch.complex128)
# The values that each rank reports per step.
TOTAL, WEIGHT, FIRST_GRAPH, LOADER, MODEL, ADDED = range(6)
COLUMNS = 6
NO_GRAPH = -1.0


class Reduction:
    """Averages the gradients of one model.

    Args:
        parameters: called before each step; returns the parameters, in the same order on every
            rank. Those that require no gradient are left out.
        ranks: the processes that take part.
        statistics: called before each step; returns the running statistics of the norms in
            training mode.

    Attributes:
        table: ``[world_size, 6]``, what each rank reported for its last step: total and weight of
            its ``Share``, its first graph (-1 if not given), two numbers of its ``note``, and the
            term that its loss adds once.

    Raises:
        ValueError: the parameters are on more than one device.
    """

    def __init__(
        self,
        parameters: Callable[[], Iterable[Tensor]],
        ranks: Ranks,
        statistics: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self._ranks = ranks
        self._wanted = parameters
        self._statistics = statistics
        devices = {parameter.device for parameter in self._trained()}
        if len(devices) > 1:
            raise ValueError(f"parameters on {how_many(len(devices), 'device')}: a rank has one")
        self._device = next(iter(devices), torch.device("cpu"))
        self._asks = self._device.type == "cpu"  # reading from a GPU would synchronize
        self._buffers: dict[tuple[tuple[torch.Size, torch.dtype], ...], _Buffer] = {}
        self.table: Tensor = torch.zeros(ranks.world_size, COLUMNS)
        # [2]: a digest of the loader and a checksum of the model, where a recording reads them.
        self.note: Tensor = torch.zeros(2, device=self._device)

    @torch.no_grad()
    def __call__(self, share: Share, first_graph: float = NO_GRAPH) -> Tensor:
        """Reduces the gradients and statistics over all ranks, in place.

        Args:
            share: this rank's part of the loss.
            first_graph: the position of the batch's first graph.

        Returns:
            The mean loss over all ranks' real rows, 0-dim; 0 if no rank had any.

        Raises:
            ValueError: a gradient is sparse.
        """
        parameters = self._trained()
        present = [parameter.grad for parameter in parameters]
        if any(grad is not None and grad.layout != torch.strided for grad in present):
            raise ValueError(
                "a gradient is sparse, and ranks add dense ones: make the embedding with "
                "sparse=False"
            )
        statistics = list(self._statistics())
        buffer = self._buffer_for(parameters, statistics)
        buffer.take(present, statistics, share, self._row(share, first_graph))
        dist.all_reduce(buffer.flat, group=self._ranks.group)
        self.table = buffer.table
        weight = self.table[:, WEIGHT].sum()
        factor = torch.where(weight > 0, 1 / weight, 0)
        buffer.sums.mul_(factor.to(buffer.sums.dtype))
        self._give_back(buffer, parameters, statistics, weight)
        return (self.table[:, TOTAL].sum() * factor).to(share.total.dtype)

    def bad_ranks(self) -> list[int]:
        """The ranks whose loss of the last step was not finite; synchronizes with the device."""
        return (~torch.isfinite(self.table[:, TOTAL])).nonzero().flatten().tolist()

    # ------------------------------------------------------------------ internals

    def _row(self, share: Share, first_graph: float) -> list[Tensor | float]:
        added = 0.0 if share.added is None else share.added
        return [share.total, share.weight, first_graph, *self.note.unbind(), added]

    def _trained(self) -> list[Tensor]:
        """The parameters that require a gradient now; some may have been frozen or added."""
        return [parameter for parameter in self._wanted() if parameter.requires_grad]

    def _buffer_for(self, parameters: Sequence[Tensor], statistics: Sequence[Tensor]) -> _Buffer:
        key = tuple((tensor.shape, tensor.dtype) for tensor in (*parameters, *statistics))
        if key not in self._buffers:
            self._buffers[key] = _Buffer(
                parameters, statistics, self._ranks, self._device, self._asks
            )
        return self._buffers[key]

    def _give_back(
        self,
        buffer: _Buffer,
        parameters: Sequence[Tensor],
        statistics: Sequence[Tensor],
        weight: Tensor,
    ) -> None:
        """Copies the sums into the gradients in place, and creates a gradient that only other ranks
        have."""
        have: list[Tensor] = []
        sums: list[Tensor] = []
        used = None
        for number, parameter in enumerate(parameters):
            if parameter.grad is None:
                if not self._asks:
                    continue
                used = buffer.used.tolist() if used is None else used
                if not used[number]:
                    continue
                parameter.grad = torch.empty_like(parameter)
            have.append(parameter.grad)
            sums.append(buffer.of_parameter[number])
        if have:
            copy_all(have, sums)
        buffer.give_back(statistics, weight)


class _Buffer:
    """One flat buffer for the gradients, the statistics, and one table row per rank, in single
    precision, or in double where any of them is."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        statistics: Sequence[Tensor],
        ranks: Ranks,
        device: torch.device,
        asks: bool,
    ) -> None:
        self._rank, self._asks = ranks.rank, asks
        tensors, count = [*parameters, *statistics], len(parameters)
        wide = any(tensor.dtype in DOUBLE for tensor in tensors)
        sizes = [tensor.numel() * (1 + tensor.is_complex()) for tensor in tensors]
        size, cells = sum(sizes), ranks.world_size * COLUMNS
        self.flat: Tensor = torch.zeros(
            size + cells + (count if asks else 0),
            dtype=torch.float64 if wide else torch.float32,
            device=device,
        )
        views = list(map(_view, self.flat[:size].split(sizes), tensors))
        self.of_parameter, self._of_statistic = views[:count], views[count:]
        self.sums: Tensor = self.flat[:size]
        # The statistics, side by side, and their values before the step.
        self._statistics = self.flat[sum(sizes[:count]) : size]
        self._before = torch.zeros_like(self._statistics)
        self._before_of = list(map(_view, self._before.split(sizes[count:]), statistics))
        self._tail = self.flat[size:]
        self.table: Tensor = self._tail[:cells].view(ranks.world_size, COLUMNS)
        self.used: Tensor = self._tail[cells:]

    def take(
        self,
        grads: Sequence[Tensor | None],
        statistics: Sequence[Tensor],
        share: Share,
        row: Sequence[Tensor | float],
    ) -> None:
        """Fills the buffer with this rank's values, and zeros where it has none."""
        have = [(v, g) for v, g in zip(self.of_parameter, grads, strict=True) if g is not None]
        for view, grad in zip(self.of_parameter, grads, strict=True):
            if grad is None:
                view.zero_()
        if have:
            copy_all([view for view, _ in have], [grad for _, grad in have])
        if self._before_of:
            copy_all(self._before_of, list(statistics))
        torch.mul(self._before, share.weight, out=self._statistics)
        self._tail.zero_()
        for cell, value in zip(self.table[self._rank].unbind(), row, strict=True):
            # Not ``table[rank, column] = number``: that copies from the host (THPVariable_setitem
            # turns the number into a CPU tensor), which is not allowed in a recording.
            cell.copy_(value) if isinstance(value, Tensor) else cell.fill_(value)
        if self._asks and len(self.used):
            self.used.copy_(torch.tensor([grad is not None for grad in grads]))

    def give_back(self, statistics: Sequence[Tensor], weight: Tensor) -> None:
        """Copies the mean statistics back; they stay as they were if no rank had any row."""
        torch.where(weight > 0, self._statistics, self._before, out=self._statistics)
        if self._of_statistic:
            copy_all(list(statistics), self._of_statistic)


def _view(flat: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(flat.view(*like.shape, 2))
    return flat.view(like.shape)
