"""The loss and the gradients of a step over all ranks, and what else must agree on all of them.

Where several processes train, a step differentiates its share of the loss
(``Share`` in ``distributed/reduction.py``). Here the shares become one mean, the gradients the
gradient of that mean, and the running statistics of norms over a single rank their average. A loss
that is not finite ends the step on every rank: a rank that stopped alone would leave the others
waiting.

With its gradients each rank sends a digest of its loader's settings and, in some steps, a checksum
of the model (:mod:`staticgraph.distributed.one_model`). If they differ, all ranks know, and find
out together what differs: on a CPU before the update, on CUDA, where reading waits for the device,
after the steps that are compared.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from staticgraph.batches.batch.batch_arrays import loader_of
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.one_model import apart, checksum
from staticgraph.distributed.ranks import Ranks
from staticgraph.distributed.reduction import (
    ADDED,
    FIRST_GRAPH,
    LOADER,
    MODEL,
    NO_GRAPH,
    WEIGHT,
    Reduction,
    Share,
)
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import version_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.state.reachable_state import held_by
from staticgraph.steps.state.training_state import require_shapes
from staticgraph.text.how_many import how_many

# The models are compared in steps 1, 2, 4, ..., and in every so many-th. The checksum of a model of
# 1.6 million parameters in 50 tensors takes 0.84 ms of one CPU core (2026-11-24).
EVERY = 64
# Scalars that the loss adds differ between ranks if they depend on the graphs; rounding is less.
SAME = 1e-6
# Each rank's norm counts the batches in which that rank had rows.
_COUNTED_BY_EACH = "num_batches_tracked"


class Averaging:
    """What happens between the backward and the update of one model on several ranks.

    Args:
        subject: on every rank, its model takes over rank 0's parameters and buffers, and so do its
            optimizer's other parameters and the modules that its loss holds.
        ranks: the ranks that train it.

    Raises:
        ValueError: the model, or what the loss holds, differs from rank 0's in names or shapes, or
            a lazy module has not run yet.
    """

    def __init__(self, subject: Subject, ranks: Ranks) -> None:
        model = subject.model
        require_shapes(model)
        held = _held_modules(subject)
        others = [p for p in subject.parameters() if id(p) not in set(map(id, model.parameters()))]
        values = [v for module in held for v in (*module.parameters(), *module.buffers())]
        others += [value for value in values if not is_lazy(value)]
        ranks.check_alike(
            {
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
        self._loader: Mapping[str, Any] | None = None
        self._settings: dict[str, Any] = {}
        self._due = self._reads = self._warned = False

    def begin(self, batch: StaticBatch) -> None:
        """Notes, before a step, the loader of its batch and, if it is due, the model's checksum.

        Every rank calls this before each of its steps.

        Raises:
            ValueError: the loader divides the graphs among another number of ranks.
        """
        self._steps += 1
        due = not self._steps & (self._steps - 1) or self._steps % EVERY == 0
        loader, note = loader_of(batch), self.reduction.note
        if due or self._due:
            note[1] = checksum(self._compared().values()) if due else 0
        self._reads = due or loader is not self._loader
        if loader is not self._loader:
            self._settings = self._settings_of(loader)
            note[0] = digest_of(self._settings) if loader is not None else 0
        self._due, self._loader = due, loader

    def _settings_of(self, loader: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns a loader's settings as they must be on all ranks.

        Raises:
            ValueError: the loader divides the graphs among another number of ranks.
        """
        if loader is None:
            return {}
        settings, size = dict(loader), loader["the loader's world_size"]
        if size not in (1, self.ranks.world_size):
            raise ValueError(
                f"the loader's world_size is {size}, and that of the job {self.ranks.world_size}: "
                "make it with runner.loader(...), which gives rank= and world_size="
            )
        if size > 1:
            settings["the loader's rank, less the process's,"] = (
                settings.pop("the loader's rank") - self.ranks.rank
            )
        return settings

    def join_rows(self, share: Share) -> Share:
        """Adds to a share the rows of another mean, before it is differentiated.

        Their number is summed over ranks first, which takes a message in the middle of the step.
        """
        if share.rows is None or share.row_weight is None:
            return share
        weights = torch.stack([share.weight, share.row_weight.to(share.weight.dtype)]).detach()
        dist.all_reduce(weights, group=self.ranks.group)
        factor = torch.where(weights[1] > 0, weights[0] / weights[1], 0)
        return Share(share.total + share.rows * factor, share.weight)

    def __call__(self, share: Share, batch: StaticBatch) -> Tensor:
        """Sums gradients and statistics over ranks, in place.

        Returns:
            The mean loss over the real rows of all ranks, 0-dim.

        Raises:
            ValueError: the ranks' loaders differ (here only on a CPU; see :meth:`compare`).
            RuntimeError: the ranks' models differ (only on a CPU).
        """
        known = self._on_cpu and self._loader is not None
        first = float(batch.graph_ids[0]) if known else NO_GRAPH
        loss = self.reduction(share.detach(), first)
        if self._on_cpu:
            self._check_ranks()
        return loss

    def check(self, loss: Tensor, batch: StaticBatch, finite: FiniteLosses) -> None:
        """Checks before the update, on a CPU, whether the mean loss is finite.

        Raises:
            NonFiniteLoss: it is not; the rank whose batch caused this names the graphs.
        """
        if not self._on_cpu or (finite.watches and not math.isfinite(loss.item())):
            finite.before_update(loss, batch, self._elsewhere())

    def compare(self) -> None:
        """Compares the ranks on CUDA, in the steps in which they are compared; warns.

        Call it after each step.

        Raises:
            ValueError, RuntimeError: as a call.
        """
        if not self._on_cpu and not self._reads:
            return
        if not self._on_cpu:
            self._check_ranks()
        if not self._warned:
            self._warn_of_one_share()
            self._warn_of_added()
        if self._due:
            self._warn_of_own_state()

    def _check_ranks(self) -> None:
        """Compares what the ranks sent with the gradients of the last step."""
        table = self.reduction.table.cpu()
        loaders = table[:, LOADER]
        if len({*loaders[loaders != 0].tolist()}) > 1:
            self.ranks.check_alike(self._settings)
        if len({*table[:, MODEL].tolist()}) > 1:
            self._refuse_models()

    def _compared(self) -> dict[str, Tensor]:
        """The parameters and buffers that must be equal on all ranks, by name."""
        model = (*self._model.named_parameters(), *self._model.named_buffers())
        return {name: value for name, value in model if not name.endswith(_COUNTED_BY_EACH)}

    def _refuse_models(self) -> None:
        different = apart(self._compared(), self.ranks)
        if not different:  # rounding alone, on processors of several kinds
            return
        (name, others), *more = different.items()
        raise RuntimeError(
            f"at step {self._steps} the ranks have different models: {name} of rank "
            f"{', '.join(map(str, others))} differs from rank 0's"
            + (f", as do {how_many(len(more), 'more tensor')}" if more else "")
            + ". Load a checkpoint and change parameters on every rank alike; what the forward "
            "writes from its own graphs or random numbers, add up over ranks there "
            "(torch.distributed.all_reduce, which every rank reaches in every step), or keep it "
            "out of the model"
        )

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
        firsts = self.reduction.table[:, FIRST_GRAPH].tolist()
        if len(firsts) > 1 and len(set(firsts)) == 1 and firsts[0] != NO_GRAPH:
            self._warned = True
            warnings.warn(
                f"all {how_many(len(firsts), 'rank')} took a batch that begins with graph "
                f"{firsts[0]:.0f}: each trains on the same graphs; make the loader with "
                "runner.loader(...), or with rank= and world_size=",
                stacklevel=5,
            )

    def _warn_of_added(self) -> None:
        """Warns of a scalar that the loss adds and that depends on each rank's graphs."""
        table = self.reduction.table
        added = table[table[:, WEIGHT] > 0, ADDED].tolist()
        if not added or max(added) - min(added) <= SAME * max(map(abs, added)):
            return
        self._warned = True
        warnings.warn(
            f"the loss adds a scalar of {min(added):.6g} on one rank and of {max(added):.6g} on "
            "another, since it depends on their graphs: their mean by the number of values is not "
            "the mean over all rows. Return the rows in its place, (values, weights, rows), and "
            "their mean over the rows of all ranks is added",
            stacklevel=5,
        )

    def check_recordable(self, share: Share | None = None) -> None:
        """Refuses to record a step in which ranks exchange data through the host.

        Args:
            share: the result of the step's loss; None before it is computed.

        Raises:
            NotStatic: the model has a norm over all ranks, or the loss adds rows, and the group is
                not an NCCL one.
        """
        if self.ranks.can_record(self._device):
            return
        if share is not None and share.rows is not None:
            raise NotStatic(
                "the loss adds the mean of rows, whose number is summed over ranks in the middle "
                f"of the step, and a group of {self.ranks.backends} does that on the host, where "
                "no recording can hold it: use NCCL, or mode='default' or 'eager'"
            )
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


def digest_of(values: Mapping[str, Any]) -> int:
    """A whole number from 1 to 2^24 that changes with any of the values; float32 holds it."""
    return 1 + int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:3])


def _norms_of_one_rank(model: torch.nn.Module) -> list[Any]:
    """The norms, torch's and PyG's, whose running statistics come from this rank's rows alone."""
    return [
        module
        for module in model.modules()
        if getattr(module, "track_running_stats", False)
        and hasattr(module, "running_mean")
        and not isinstance(module, torch.nn.SyncBatchNorm)
    ]


def _held_modules(subject: Subject) -> list[torch.nn.Module]:
    """The modules of the loss and the forward that are not part of the model."""
    of_model = {id(module) for module in subject.model.modules()}
    held_modules = held_by(*subject.functions).modules
    return [
        held
        for held in held_modules
        if not any(id(module) in of_model for module in held.modules())
    ]
