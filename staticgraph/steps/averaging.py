"""The loss and the gradients of a step over all ranks, and what else must be one on all of them.

Where several processes train, a step differentiates its share of the loss
(:class:`staticgraph.distributed.share.Share`); here the shares become one mean, the gradients its
gradient, and the running statistics of norms that see one rank alone their mean. A loss that is
not finite ends the step on every rank: one that stopped alone would leave the others waiting.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.distributed.reduction import NO_GRAPH, Reduction
from staticgraph.distributed.share import Share
from staticgraph.errors import NotStatic
from staticgraph.steps.finite import FiniteLosses
from staticgraph.steps.subject import Subject
from staticgraph.text.how_many import how_many


class Averaging:
    """Between the backward and the update of one model on several ranks.

    Args:
        subject: its model has rank 0's parameters and buffers afterwards, on every rank.
        ranks: who trains it.

    Raises:
        ValueError: the model differs from rank 0's.
    """

    def __init__(self, subject: Subject, ranks: Ranks) -> None:
        model = subject.model
        ranks.check_alike(
            **{
                "the model": [
                    (name, tuple(value.shape), str(value.dtype), value.requires_grad)
                    for name, value in (*model.named_parameters(), *model.named_buffers())
                ]
            }
        )
        ranks.take_from_first([*model.parameters(), *model.buffers()])
        self.ranks = ranks
        self._norms = _norms_of_one_rank(model)
        self._model, self._device = model, subject.device
        self._on_cpu = subject.device.type == "cpu"
        self.reduction: Reduction = Reduction(_trained(subject), ranks, self._statistics)
        self._compared = not self._on_cpu

    def __call__(self, share: Share, batch: StaticBatch) -> Tensor:
        """Sums gradients and statistics over ranks, in place.

        Returns:
            The mean loss over all ranks' real rows, 0-dim.
        """
        first = float(batch.graph_ids[0]) if self._on_cpu else NO_GRAPH
        return self.reduction(share.detach(), batch.bucket, first)

    def check(self, loss: Tensor, batch: StaticBatch, finite: FiniteLosses) -> None:
        """Before the update: looks whether the mean is finite, on a CPU.

        Raises:
            NonFiniteLoss: it is not; the rank whose batch it was names the graphs.
        """
        if not self._on_cpu or (finite.watches and not math.isfinite(loss.item())):
            finite.before_update(loss, batch, self._elsewhere())

    def compare_once(self) -> None:
        """Warns, after the first step on a CPU, of ranks that all have the same graphs."""
        if self._compared:
            return
        self._compared = True
        firsts = self.reduction.table[:, 3].tolist()
        if len(firsts) > 1 and len(set(firsts)) == 1 and firsts[0] != NO_GRAPH:
            warnings.warn(
                f"all {how_many(len(firsts), 'rank')} took a batch that begins with graph "
                f"{firsts[0]:.0f}: each trains on the same graphs; make the loader with "
                "runner.loader(...), or with rank= and world_size=",
                stacklevel=5,
            )

    def check_recordable(self) -> None:
        """Refuses to record a step in whose middle ranks wait for each other, over a group that
        does this on the host.

        Raises:
            NotStatic: the model has a norm over all ranks, and the group is not of NCCL.
        """
        if self.ranks.can_record(self._device):
            return
        for path, module in self._model.named_modules():
            if isinstance(module, torch.nn.SyncBatchNorm):
                raise NotStatic(
                    f"{path or 'the model'} is a SyncBatchNorm, which sums over ranks in the "
                    f"middle of the step, and a group of {self.ranks.backends} does that on the "
                    "host, where no recording can hold it: use NCCL, mode='default' or 'eager', "
                    "or BatchNorm, whose running statistics are averaged beside the recording"
                )

    # ------------------------------------------------------------------ inside

    def _elsewhere(self) -> list[int] | None:
        """The other ranks with a loss that is not finite, where this rank's is."""
        if not self._on_cpu:
            return None
        bad = self.reduction.bad_ranks()
        return None if self.ranks.rank in bad else bad

    def _statistics(self) -> list[Tensor]:
        return [
            statistic
            for norm in self._norms
            if norm.training
            for statistic in (norm.running_mean, norm.running_var)
            if statistic is not None
        ]


def _norms_of_one_rank(
    model: torch.nn.Module,
) -> list[torch.nn.modules.batchnorm._NormBase]:
    """Norms whose running statistics come from this rank's rows."""
    return [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.modules.batchnorm._NormBase)
        and not isinstance(module, torch.nn.SyncBatchNorm)
        and module.track_running_stats
    ]


def _trained(subject: Subject) -> list[Tensor]:
    """Parameters of the model, and of the optimizer where it has others."""
    found = {id(p): p for p in subject.model.parameters()}
    for group in () if subject.optimizer is None else subject.optimizer.param_groups:
        found |= {id(p): p for p in group["params"]}
    return list(found.values())
