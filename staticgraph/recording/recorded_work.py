"""What a recording records: the work of a key, as a function without arguments.

It reads the bucket's input slot and returns tensors. A ``step`` goes as far as its scope says: to
the gradients, or through the optimizer.

The problem of the optimizer's step, which is recorded in pieces of even size: torch's fused
optimizers give each 65,536 numbers of a tensor to one thread block, and each launch 36 tensors, so
the weights of a small model keep a few blocks busy for long: 101 us of a GINE step of 5x300 on an
H200. Here the same kernels receive each tensor as several views, large ones first, and take 43 us.
They compute number by number, so results are the same bits. Views are made where a step is recorded
and in the runs before it, not in replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.recording.recording_keys import Scope
from staticgraph.steps.compilation.compiled_steps import CompiledSteps
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.loss.finite_losses import FiniteLosses
from staticgraph.steps.rank_averaging import Averaging
from staticgraph.steps.update import Update


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """The functions that a runner's recordings are made from.

    Attributes:
        computation: computes the forward, or forward and mean loss, of a batch.
        compiled: its functions are recorded if the recorder wants compiled ones.
        update: clipping and the optimizer, inside the recording for ``scope="step"``.
        scope: how much of a training step is recorded.
        finite: notes losses that are not finite, inside the recordings.
        averaging: averages over several ranks, inside the recordings for ``scope="step"``; with
            other scopes a step returns a ``Share``, still to be averaged.
    """

    computation: Computation
    compiled: CompiledSteps
    update: Update
    scope: Scope
    finite: FiniteLosses
    averaging: Averaging | None

    def forward(self, inputs: StaticBatch, compiles: bool) -> Any:
        """Computes the output alone, without an autograd graph.

        Args:
            inputs: the batch over the bucket's input slot.
            compiles: whether to run the compiled functions or eager ones.
        """
        with torch.no_grad():
            return self.computed("forward", inputs, compiles)

    def step(self, inputs: StaticBatch, compiles: bool) -> Any:
        """Computes forward, loss and as much of the update as is recorded.

        Args:
            inputs, compiles: as for :meth:`forward`.

        Returns:
            The mean loss, or the share of it that is still to be averaged.
        """
        self.update.zero_grad()
        result = self.computed("step", inputs, compiles)
        if self.averaging is None:
            self.finite.note(result.detach(), inputs)
            result.backward()
            loss = result.detach()
        else:
            self.averaging.check_recordable(result)
            result = self.averaging.join_rows(result)
            result.total.backward()
            if self.scope != "step":
                return result.detach()
            loss = self.averaging(result, inputs)
            self.finite.note(loss, inputs)
        if self.scope == "step":
            with EvenUpdate():
                self.update()
        return loss

    def computed(self, work: str, batch: StaticBatch, compiles: bool) -> Any:
        """Returns a batch's output or mean loss, with gradients if autograd is enabled."""
        if compiles:
            return self.compiled.run(work, batch)
        with self.computation.active():
            return self.computation.run(work, batch)


# Numbers in a piece, a multiple of what torch's kernels load at once.
PIECE = 8192
ATEN = torch.ops.aten
FUSED = frozenset({ATEN._fused_adam_, ATEN._fused_adamw_})


class EvenUpdate(TorchDispatchMode):
    """A ``with`` block in which fused Adam and AdamW see their tensors in pieces."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in FUSED:
            args = in_pieces(args)
        return func(*args, **(kwargs or {}))


def in_pieces(columns: Sequence[list[Tensor]]) -> list[list[Tensor]]:
    """Returns lists of pieces, the largest tensors first.

    Args:
        columns: parameters, gradients, two or three lists of state (the third may be empty), and
            step counts, which the pieces of a tensor share.
    """
    *columns, steps = columns
    pieces: list[list[Tensor]] = [[] for _ in columns]
    counts: list[Tensor] = []
    for i in sorted(range(len(steps)), key=lambda i: -columns[0][i].numel()):
        whole = [column[i] for column in columns if column]
        if all(tensor.is_contiguous() for tensor in whole):
            cut = [tensor.view(-1).split(PIECE) for tensor in whole]
        else:
            cut = [(tensor,) for tensor in whole]
        for column, parts in zip(pieces, cut, strict=False):
            column.extend(parts)
        counts += [steps[i]] * len(cut[0])
    return [*pieces, counts]
