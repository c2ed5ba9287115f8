"""Epochs that are committed whole or not at all, and never after the training diverged.

Embeddings that are not finite are useless, and so is everything trained from them. An epoch whose
loss, embeddings or parameters are not finite is therefore not committed: the disk keeps the last
good epoch, and the error names the one that diverged. The loss is checked when a state ends, which
costs nothing compared with a state; embeddings are checked as they are written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import Diverged
from staticgraph.outofcore.policies.bias import edge_permutation_bias
from staticgraph.outofcore.training import link_epoch
from staticgraph.outofcore.training.link_epoch import LinkEpoch

if TYPE_CHECKING:
    from torch import Tensor

    from staticgraph.outofcore.buffer.buffer import EmbeddingBuffer
    from staticgraph.outofcore.disk.embeddings import EmbeddingFile
    from staticgraph.outofcore.disk.graph import PartitionedGraph
    from staticgraph.outofcore.policies.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of one pass over the edges, before its commit; the loss is a sum."""

    loss: Tensor
    edges: int
    batches: int
    schedule: Schedule


class CommittedEpochs:
    """The base class of trainers for embeddings on disk.

    If an epoch fails, diverges or is interrupted, the buffer, the file and all other trained
    parameters return to their state at the start of the epoch.
    """

    graph: PartitionedGraph
    buffer: EmbeddingBuffer
    file: EmbeddingFile
    _in_epoch: bool = False

    @property
    def epoch(self) -> int:
        """Number of committed epochs."""
        return self.file.epoch

    @property
    def history(self) -> tuple[LinkEpoch, ...]:
        """The results of all committed epochs, including those of earlier runs."""
        return link_epoch.from_bytes(self.file.extras["history"])

    def train_epoch(self, on_state: Callable[[int, int], None] | None = None) -> LinkEpoch:
        """Trains one pass over all edges and commits it.

        Args:
            on_state: called with the number of each state when it begins, and the number of states.

        Raises:
            Diverged: if the loss, embeddings or parameters are not finite; nothing was committed.
            RuntimeError: if another trainer has committed to the folder since.
        """
        self.file.require_latest()
        self._in_epoch = True
        started, waited = time.perf_counter(), self.buffer.waited_s
        read_before = self.file.bytes_read
        try:
            passed = self._pass(on_state)
            parameters = self._parameters()
            self._refuse_divergence(passed.loss, parameters)
            # Durable before the clock is read, since the epoch's figures are part of the commit.
            self.file.sync()
            done = LinkEpoch(
                epoch=self.epoch + 1,
                loss=float(passed.loss) / max(1, passed.edges),
                edges=passed.edges,
                batches=passed.batches,
                states=len(passed.schedule.states),
                swaps=passed.schedule.swaps,
                partitions_read=passed.schedule.reads,
                bytes_read=self.file.bytes_read - read_before,
                bias=edge_permutation_bias(passed.schedule, self.graph.cell_sizes),
                seconds=time.perf_counter() - started,
                waited_s=self.buffer.waited_s - waited,
            )
            kept = {name: self.file.extras[name] for name in ("identity", "partition")}
            history = link_epoch.to_bytes((*self.history, done))
            self.file.commit({**kept, "history": history, **parameters})
        except BaseException:
            # Also after an interrupt: the next epoch must start from the same state as this one.
            self.buffer.abandon()
            self.file.rollback()
            self._restore()
            raise
        finally:
            self._in_epoch = False
        return done

    def _require_between_epochs(self) -> None:
        """Rejects reads during an epoch, when only some partitions on disk have been updated."""
        if self._in_epoch:
            raise RuntimeError(
                f"epoch {self.epoch + 1} is under way, and what is on the disk is partly of it: "
                "read and evaluate between epochs"
            )

    def _refuse_divergence(
        self, loss: Tensor, parameters: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Raises Diverged if the loss, embeddings or parameters are not finite."""
        found = ""
        if not math.isfinite(value := float(loss)):
            found = f"the loss is {value}"
        elif self.file.not_finite:
            found = f"embeddings of partition {min(self.file.not_finite)} are not finite"
        for name, array in (parameters or {}).items():
            if not found and not np.isfinite(array).all():
                found = f"{name} is not finite"
        if found:
            number = self.epoch + 1
            raise Diverged(
                f"the training diverged in epoch {number}: {found}; epoch {self.epoch} is what "
                f"{self.file.folder} holds. Train again with a lower rate",
                number,
            )

    def _pass(self, on_state: Callable[[int, int], None] | None) -> Pass:
        """Trains one pass over all edges, without committing it."""
        raise NotImplementedError

    def _parameters(self) -> dict[str, NDArray[Any]]:
        """Returns all trained parameters other than the embeddings, by name."""
        raise NotImplementedError

    def _restore(self) -> None:
        """Restores the parameters that :meth:`_parameters` returned at the last commit."""
        raise NotImplementedError
