"""Epochs that are committed whole or not at all, and never after the training diverged.

Embeddings that are not finite are useless, and so is everything trained from them. An epoch whose
loss, embeddings or parameters are not finite is therefore not committed: the disk keeps the last
good epoch, and the error names the one that diverged. The loss is checked when a state ends, which
costs nothing compared with a state; embeddings are checked as they are written.

A folder records how its embeddings were trained, and over which partitioned graph: row i is the
embedding of node i in the numbering of this graph only. Training further with another configuration
would mix two runs, and with another numbering would assign embeddings to wrong nodes: both are
rejected.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import Diverged
from staticgraph.outofcore.disk.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.policies.schedule import edge_permutation_bias
from staticgraph.outofcore.training.link_step import LinkConfig

if TYPE_CHECKING:
    from torch import Tensor

    from staticgraph.outofcore.buffer.buffer import EmbeddingBuffer
    from staticgraph.outofcore.disk.graph import PartitionedGraph
    from staticgraph.outofcore.policies.schedule import Schedule


@dataclass(frozen=True, slots=True)
class LinkEpoch:
    """The results of one epoch; ``seconds`` includes ``waited_s``."""

    epoch: int
    loss: float
    edges: int
    batches: int
    states: int
    swaps: int
    partitions_read: int
    bytes_read: int
    bias: float
    seconds: float
    waited_s: float


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
        text = self.file.extras["history"].tobytes()
        return tuple(LinkEpoch(**values) for values in json.loads(text))

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
            result = LinkEpoch(
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
            unchanged = {name: self.file.extras[name] for name in ("identity", "partition")}
            history = _bytes_of((*self.history, result))
            self.file.commit({**unchanged, "history": history, **parameters})
        except BaseException:
            # Also after an interrupt: the next epoch must start from the same state as this one.
            self.buffer.abandon()
            self.file.rollback()
            self._restore()
            raise
        finally:
            self._in_epoch = False
        return result

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
        reason = ""
        if not math.isfinite(value := float(loss)):
            reason = f"the loss is {value}"
        elif self.file.not_finite:
            reason = f"embeddings of partition {min(self.file.not_finite)} are not finite"
        for name, array in (parameters or {}).items():
            if not reason and not np.isfinite(array).all():
                reason = f"{name} is not finite"
        if reason:
            number = self.epoch + 1
            raise Diverged(
                f"the training diverged in epoch {number}: {reason}; epoch {self.epoch} is what "
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


def open_embeddings(
    folder: Path,
    graph: PartitionedGraph,
    config: LinkConfig,
    description: str,
    extras: Mapping[str, NDArray[Any]],
) -> EmbeddingFile:
    """Opens or creates the embeddings of a run.

    Args:
        folder: their folder.
        graph: the graph, for its partitions.
        config: the configuration, for dimension, spread and seed.
        description: of further options that must be unchanged to continue.
        extras: arrays committed with the initial values.

    Raises:
        ValueError: if the folder holds embeddings of another partitioning or configuration.
    """
    text = f"{config} {graph.num_nodes} {graph.num_edges} {description}"
    identity = np.frombuffer(text.encode(), np.uint8)
    digest = np.frombuffer(graph.digest.encode(), np.uint8)
    try:
        file = EmbeddingFile(folder, cached=graph.cached)
    except FileNotFoundError:
        shape = (graph.partition_size, config.dimension)

        def initial(partition: int) -> FloatArray:
            """Returns ``[rows, D]`` float32, which depends only on the seed and the partition."""
            rng = np.random.default_rng([config.seed, 0, partition])
            return config.spread * rng.standard_normal(shape, np.float32)

        return EmbeddingFile.create(
            folder, graph.num_partitions, graph.partition_size, config.dimension, initial,
            {"identity": identity, "partition": digest, "history": _bytes_of(()), **extras},
            cached=graph.cached,
        )  # fmt: skip
    recorded = file.extras.get("partition", np.empty(0, np.uint8)).tobytes().decode()
    if recorded != graph.digest:
        file.close()
        raise ValueError(
            f"{folder} holds embeddings of the partitioned graph "
            f"{recorded or '(of an older version)'}; {graph.folder} is {graph.digest}, whose nodes "
            "have other numbers: partition with the same seed over the same edges to go on, or "
            "choose another folder"
        )
    if not np.array_equal(file.extras["identity"], identity):
        file.close()
        raise ValueError(
            f"{folder} holds embeddings trained as {bytes(file.extras['identity']).decode()}; "
            f"this is {text}: go on with the same, or choose another folder"
        )
    return file


def _bytes_of(history: Sequence[LinkEpoch]) -> NDArray[np.uint8]:
    """Encodes epochs as an array that a commit can contain."""
    text = json.dumps([asdict(epoch) for epoch in history], allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)
