"""An epoch that is committed whole or not at all, and never where the training has diverged.

Embeddings that are not finite teach nothing and order nothing: whatever is trained from them is
lost too. So an epoch whose loss, embeddings or parameters are not finite is not committed: what
stands on disk is the last good epoch, and the error names the one that diverged. The loss is looked
at when a state ends, which costs nothing beside a state; embeddings as they are written.
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
    """One pass over the edges, before it is committed: the summed loss, and of how much."""

    loss: Tensor
    edges: int
    batches: int
    schedule: Schedule


class CommittedEpochs:
    """What trainers of embeddings on disk share: an epoch that fails, diverges or is interrupted
    leaves the buffer, the file and what is trained beside them where the epoch began."""

    graph: PartitionedGraph
    buffer: EmbeddingBuffer
    file: EmbeddingFile
    _in_epoch: bool = False

    @property
    def epoch(self) -> int:
        """Epochs that are committed."""
        return self.file.epoch

    @property
    def history(self) -> tuple[LinkEpoch, ...]:
        """What every committed epoch did, those of earlier sittings included."""
        return link_epoch.from_bytes(self.file.extras["history"])

    def train_epoch(self, on_state: Callable[[int, int], None] | None = None) -> LinkEpoch:
        """One pass over all edges, committed at its end.

        Args:
            on_state: told the number of the state that begins and of how many.

        Raises:
            Diverged: the loss or what was trained is not finite; nothing was committed.
            RuntimeError: another trainer has committed to the folder since.
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
            # Also an interrupt: the next epoch must begin where this one did.
            self.buffer.abandon()
            self.file.rollback()
            self._restore()
            raise
        finally:
            self._in_epoch = False
        return done

    def _require_between_epochs(self) -> None:
        """Refuses to read in the middle of an epoch: some partitions are of it, others before."""
        if self._in_epoch:
            raise RuntimeError(
                f"epoch {self.epoch + 1} is under way, and what is on the disk is partly of it: "
                "read and evaluate between epochs"
            )

    def _refuse_divergence(
        self, loss: Tensor, parameters: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Raises where something is not finite that should be learned from."""
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
        """The pass alone."""
        raise NotImplementedError

    def _parameters(self) -> dict[str, NDArray[Any]]:
        """What is trained beside the embeddings, by name."""
        raise NotImplementedError

    def _restore(self) -> None:
        """Puts back what :meth:`_parameters` gave at the last commit."""
        raise NotImplementedError
