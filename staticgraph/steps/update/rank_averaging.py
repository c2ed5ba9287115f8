"""The loss and the gradients of a step over all ranks, and what else must agree on all of them.

Where several processes train, a step differentiates its share of the loss
(:class:`staticgraph.distributed.share.Share`). Here the shares become one mean, the gradients the
gradient of that mean, and the running statistics of norms over a single rank their average. A loss
that is not finite ends the step on every rank: a rank that stopped alone would leave the others
waiting.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.nn import HeteroBatchNorm

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.one_model import apart
from staticgraph.distributed.ranks import Ranks
from staticgraph.distributed.reduction import NO_GRAPH, Reduction
from staticgraph.distributed.share import Share
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import version_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.state.reachable_state import held_by
from staticgraph.text.how_many import how_many

# Each rank's norm counts the batches in which that rank had rows.
_COUNTED_BY_EACH = "num_batches_tracked"


class Averaging:
    """What happens between the backward and the update of one model on several ranks.

    Args:
        subject: on every rank, its model takes over rank 0's parameters and buffers, and so do its
            optimizer's other parameters and the modules that its loss holds.
        ranks: the ranks that train it.

    Raises:
        ValueError: the model, or what the loss holds, differs from rank 0's in names or shapes.
    """

    def __init__(self, subject: Subject, ranks: Ranks) -> None:
        model = subject.model
        held = _held_modules(subject)
        others = [p for p in subject.parameters() if id(p) not in set(map(id, model.parameters()))]
        others += [value for module in held for value in _state_of(module)]
        ranks.check_alike(
            **{
                "the model": [
                    (name, tuple(value.shape), str(value.dtype), value.requires_grad)
                    for name, value in (*model.named_parameters(), *model.named_buffers())
                ],
                "what the loss or the optimizer holds beside the model": [
                    (tuple(value.shape), str(value.dtype)) for value in others
                ],
            }
        )
        ranks.take_from_first([*model.parameters(), *model.buffers(), *others])
        self.ranks = ranks
        self._subject = subject
        self._model, self._device = model, subject.device
        self._steps = 0
        self._versions = {id(t): version_of(t) for t in held_by(*subject.functions).tensors}
        self._on_cpu = subject.device.type == "cpu"
        self.reduction: Reduction = Reduction(subject.parameters, ranks, self._statistics)
        self._compared = not self._on_cpu

    def __call__(self, share: Share, batch: StaticBatch) -> Tensor:
        """Sums gradients and statistics over ranks, in place.

        Returns:
            The mean loss over the real rows of all ranks, 0-dim.
        """
        first = float(batch.graph_ids[0]) if self._on_cpu else NO_GRAPH
        return self.reduction(share.detach(), batch.bucket, first)

    def check(self, loss: Tensor, batch: StaticBatch, finite: FiniteLosses) -> None:
        """Checks before the update, on a CPU, whether the mean loss is finite.

        Raises:
            NonFiniteLoss: it is not; the rank whose batch caused this names the graphs.
        """
        if not self._on_cpu or (finite.watches and not math.isfinite(loss.item())):
            finite.before_update(loss, batch, self._elsewhere())

    def compare(self) -> None:
        """Checks, after steps 1, 2, 4, 8, ..., whether all ranks have the same model.

        After the first step, on a CPU, also warns if all ranks have the same graphs. Call it after
        each step.

        Raises:
            RuntimeError: a parameter or a buffer of the model differs from rank 0's.
        """
        if not self._compared:
            self._compared = True
            self._warn_of_one_share()
        self._steps += 1
        if self._steps & (self._steps - 1):
            return
        model = (*self._model.named_parameters(), *self._model.named_buffers())
        named = {name: value for name, value in model if not name.endswith(_COUNTED_BY_EACH)}
        different = apart(named, self.ranks)
        if different:
            raise RuntimeError(
                f"after step {self._steps} the ranks have different models: {different[0]}"
                + (f" and {how_many(len(different) - 1, 'more tensor')}" if different[1:] else "")
                + " is written by the forward, or between steps, from each rank's own graphs or "
                "random numbers: add it up over ranks there (torch.distributed.all_reduce, which "
                "every rank reaches in every step), or keep it out of the model"
            )
        self._warn_of_own_state()

    def _warn_of_own_state(self) -> None:
        """Warns of tensors that the loss has written to and that differ between ranks."""
        written = {
            str(number): tensor
            for number, tensor in enumerate(held_by(*self._subject.functions).tensors)
            if version_of(tensor) != self._versions.get(id(tensor), version_of(tensor))
        }
        shapes = [list(written[name].shape) for name in apart(written, self.ranks)]
        if shapes:
            warnings.warn(
                f"the loss writes to a tensor of shape {shapes[0]}, and each rank has values of "
                "its own there, so that they train with different losses: add it up over ranks "
                "where it is written (torch.distributed.all_reduce), if that is not intended",
                stacklevel=5,
            )
            self._versions = {}  # warns only once

    def _warn_of_one_share(self) -> None:
        firsts = self.reduction.table[:, 3].tolist()
        if len(firsts) > 1 and len(set(firsts)) == 1 and firsts[0] != NO_GRAPH:
            warnings.warn(
                f"all {how_many(len(firsts), 'rank')} took a batch that begins with graph "
                f"{firsts[0]:.0f}: each trains on the same graphs; make the loader with "
                "runner.loader(...), or with rank= and world_size=",
                stacklevel=5,
            )

    def check_recordable(self) -> None:
        """Refuses to record a step in which ranks exchange data through the host.

        Raises:
            NotStatic: the model has a norm over all ranks, and the group is not an NCCL one.
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
        """The other ranks whose loss is not finite; None if this rank is one of them."""
        if not self._on_cpu:
            return None
        bad = self.reduction.bad_ranks()
        return None if self.ranks.rank in bad else bad

    def _statistics(self) -> list[Tensor]:
        return [
            statistic
            for norm in _norms_of_one_rank(self._model)
            if norm.training
            for statistic in (norm.running_mean, norm.running_var)
            if isinstance(statistic, Tensor)
        ]


def _norms_of_one_rank(
    model: torch.nn.Module,
) -> list[torch.nn.modules.batchnorm._NormBase | HeteroBatchNorm]:
    """The norms whose running statistics come from this rank's rows alone."""
    return [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.modules.batchnorm._NormBase | HeteroBatchNorm)
        and not isinstance(module, torch.nn.SyncBatchNorm)
        and module.track_running_stats
    ]


def _held_modules(subject: Subject) -> list[torch.nn.Module]:
    """The modules of the loss and the forward that are not part of the model."""
    own = {id(module) for module in subject.model.modules()}
    found = held_by(*subject.functions).modules
    return [held for held in found if not any(id(module) in own for module in held.modules())]


def _state_of(module: torch.nn.Module) -> list[Tensor]:
    """A module's parameters and buffers that have values."""
    return [value for value in (*module.parameters(), *module.buffers()) if not is_lazy(value)]
