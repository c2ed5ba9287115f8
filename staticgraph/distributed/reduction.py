"""Reduces the gradients of all ranks to the gradient of the mean over all ranks' real rows.

The problem: the batches of ranks differ in the number of real rows and of missing labels, so the
mean of the ranks' means is not the mean. The idea: each rank differentiates its *sum*
(:class:`Share`); the gradients are summed over ranks in a few flat
buffers, the last of which also holds how many rows each rank had, and everything is divided by the
total number of rows. This takes one round of communication per step, no rank waits for a count
beforehand, and a rank with only padding takes part with weight 0.

The running statistics of norms that see only one rank's rows (``BatchNorm``, unlike
``SyncBatchNorm``) are sent in the same buffers and become the mean over ranks, by weight, so that
all ranks keep the same model.

Invariants: afterwards loss, gradients and statistics are equal bit for bit on every rank; the same
parameters have a gradient on every rank (on a CPU this is exchanged at each step; on CUDA it
follows from the recorded step, which is the same on every rank).

The contribution of one rank's batch to a loss that is the mean over all ranks' rows.
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


# The default of torch's DistributedDataParallel; most GNNs fit into one buffer.
BUFFER_BYTES = 25 << 20
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
        buffer_bytes: the size of a flat buffer.

    Attributes:
        table: ``[world_size, 6]``, what each rank reported for its last step: total and weight of
            its ``Share``, its first graph (-1 if not given), two numbers of its ``note``, and the
            term that its loss adds once.
        nbytes: bytes that each rank sends per step.

    Raises:
        ValueError: the parameters are on more than one device.
    """

    def __init__(
        self,
        parameters: Callable[[], Iterable[Tensor]],
        ranks: Ranks,
        statistics: Callable[[], Sequence[Tensor]] = tuple,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._ranks = ranks
        self._wanted = parameters
        self._statistics = statistics
        self._buffer_bytes = buffer_bytes
        devices = {parameter.device for parameter in self._trained()}
        if len(devices) > 1:
            raise ValueError(f"parameters on {how_many(len(devices), 'device')}: a rank has one")
        self._device = next(iter(devices), torch.device("cpu"))
        self._asks = self._device.type == "cpu"  # reading from a GPU would synchronize
        self._buffers: dict[tuple[tuple[torch.Size, torch.dtype], ...], _Buffers] = {}
        self.table: Tensor = torch.zeros(ranks.world_size, COLUMNS)
        # [2]: a digest of the loader and a checksum of the model, where a recording reads them.
        self.note: Tensor = torch.zeros(2, device=self._device)
        self.nbytes: int = 0

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
        buffers = self._buffers_for(parameters, statistics)
        buffers.take(present, statistics, share, self._row(share, first_graph))
        works = [
            dist.all_reduce(flat, group=self._ranks.group, async_op=self._asks)
            for flat in buffers.flats
        ]
        for work in works:
            if work is not None:
                work.wait()
        self.table = buffers.table
        weight = self.table[:, WEIGHT].sum()
        factor = torch.where(weight > 0, 1 / weight, 0)
        for flat in buffers.sums:
            flat.mul_(factor.to(flat.dtype))
        self._give_back(buffers, parameters, statistics, weight)
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

    def _buffers_for(self, parameters: Sequence[Tensor], statistics: Sequence[Tensor]) -> _Buffers:
        key = tuple((tensor.shape, tensor.dtype) for tensor in (*parameters, *statistics))
        if key not in self._buffers:
            self._buffers[key] = _Buffers(
                parameters,
                statistics,
                self._ranks,
                self._buffer_bytes,
                self._device,
                self._asks,
            )
            self.nbytes = self._buffers[key].nbytes
        return self._buffers[key]

    def _give_back(
        self,
        buffers: _Buffers,
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
                used = buffers.used.tolist() if used is None else used
                if not used[number]:
                    continue
                parameter.grad = torch.empty_like(parameter)
            have.append(parameter.grad)
            sums.append(buffers.of_parameter[number])
        if have:
            _copy(have, sums)
        buffers.give_back(statistics, weight)


class _Buffers:
    """Flat buffers for the gradients, the statistics, and one table row per rank."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        statistics: Sequence[Tensor],
        ranks: Ranks,
        buffer_bytes: int,
        device: torch.device,
        asks: bool,
    ) -> None:
        self._rank = ranks.rank
        self._asks = asks
        tensors = [*parameters, *statistics]
        tail = ranks.world_size * COLUMNS + (len(parameters) if asks else 0)
        groups: list[tuple[torch.dtype, list[int], int]] = []
        for number, tensor in enumerate(tensors):
            dtype, size = _summed_in(tensor), _size(tensor)
            last = next((g for g in reversed(groups) if g[0] == dtype), None)
            if last is None or (last[2] + size) * dtype.itemsize > buffer_bytes:
                groups.append((dtype, [number], size))
            else:
                groups[groups.index(last)] = (dtype, [*last[1], number], last[2] + size)
        if not groups:
            groups.append((torch.float32, [], 0))
        widest = max(range(len(groups)), key=lambda g: groups[g][0].itemsize)
        # The buffer with the tail is reduced last, in the same order on every rank.
        groups.append(groups.pop(widest))
        views: dict[int, Tensor] = {}
        self.flats: list[Tensor] = []
        self.sums: list[Tensor] = []
        # The statistics of each flat buffer, side by side, and their values before the step.
        self._statistics: list[Tensor] = []
        self._before: list[Tensor] = []
        before: dict[int, Tensor] = {}
        for place, (dtype, numbers, size) in enumerate(groups):
            more = tail if place == len(groups) - 1 else 0
            flat = torch.zeros(size + more, dtype=dtype, device=device)
            begin = 0
            for number in numbers:
                like = tensors[number]
                views[number] = _view(flat[begin : begin + _size(like)], like)
                begin += _size(like)
            self.flats.append(flat)
            self.sums.append(flat[:size])
            statistics_of = [n for n in numbers if n >= len(parameters)]
            count = sum(_size(tensors[n]) for n in statistics_of)
            if count:
                self._statistics.append(flat[size - count : size])
                self._before.append(torch.zeros_like(self._statistics[-1]))
                parts = self._before[-1].split([_size(tensors[n]) for n in statistics_of])
                before |= {
                    n: _view(part, tensors[n]) for n, part in zip(statistics_of, parts, strict=True)
                }
        last = self.flats[-1][len(self.sums[-1]) :]
        self.table = last[: ranks.world_size * COLUMNS].view(ranks.world_size, COLUMNS)
        self.used = last[ranks.world_size * COLUMNS :]
        self._tail = last
        self.of_parameter = [views[n] for n in range(len(parameters))]
        of_statistics = range(len(parameters), len(tensors))
        self._of_statistic = [views[n] for n in of_statistics]
        self._before_of = [before[n] for n in of_statistics]
        self.nbytes = sum(flat.nbytes for flat in self.flats)

    def take(
        self,
        grads: Sequence[Tensor | None],
        statistics: Sequence[Tensor],
        share: Share,
        row: Sequence[Tensor | float],
    ) -> None:
        """Fills the buffers with this rank's values, and zeros where it has none."""
        have = [(v, g) for v, g in zip(self.of_parameter, grads, strict=True) if g is not None]
        for view, grad in zip(self.of_parameter, grads, strict=True):
            if grad is None:
                view.zero_()
        if have:
            _copy([view for view, _ in have], [grad for _, grad in have])
        if self._before_of:
            _copy(self._before_of, list(statistics))
        for values, before in zip(self._statistics, self._before, strict=True):
            torch.mul(before, share.weight, out=values)
        self._tail.zero_()
        for cell, value in zip(self.table[self._rank].unbind(), row, strict=True):
            # Not ``table[rank, column] = number``: that copies from the host (THPVariable_setitem
            # turns the number into a CPU tensor), which is not allowed in a recording.
            cell.copy_(value) if isinstance(value, Tensor) else cell.fill_(value)
        if self._asks and len(self.used):
            self.used.copy_(torch.tensor([grad is not None for grad in grads]))

    def give_back(self, statistics: Sequence[Tensor], weight: Tensor) -> None:
        """Copies the mean statistics back; they stay as they were if no rank had any row."""
        for values, before in zip(self._statistics, self._before, strict=True):
            torch.where(weight > 0, values, before, out=values)
        if self._of_statistic:
            _copy(list(statistics), self._of_statistic)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    copy_all(targets, sources)


def _summed_in(tensor: Tensor) -> torch.dtype:
    """The dtype of a sum: half precision is summed in single precision."""
    double = tensor.dtype in (torch.float64, torch.complex128)
    return torch.float64 if double else torch.float32


def _size(tensor: Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _view(flat: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(flat.view(*like.shape, 2))
    return flat.view(like.shape)
