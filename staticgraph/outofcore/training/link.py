"""Link prediction: trains embeddings of all nodes of a graph that does not fit in memory.

An epoch follows a policy's schedule: the buffer loads the states, and the edges of a state's cells
are shuffled and trained on in batches (:mod:`staticgraph.outofcore.training.link_step`). The
touched rows get Adagrad's update at once, so staleness is 0, and the end of the epoch is a commit.

Random draws depend only on (seed, epoch, state), so an interrupted epoch runs again exactly as it
would have. Source: Marius, OSDI 2021, sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.outofcore.buffer.buffer import EmbeddingBuffer, ResidentState
from staticgraph.outofcore.disk.embeddings import EmbeddingFile
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.policies.policy import EdgePolicy
from staticgraph.outofcore.training.adagrad import adagrad_rows
from staticgraph.outofcore.training.committed_epochs import CommittedEpochs, Pass
from staticgraph.outofcore.training.decoders import DECODERS, Decoder
from staticgraph.outofcore.training.first_embeddings import open_for
from staticgraph.outofcore.training.link_epoch import LinkEpoch
from staticgraph.outofcore.training.link_step import LinkConfig, LinkStep

__all__ = ["LinkEpoch", "LinkTrainer"]


class LinkTrainer(CommittedEpochs):
    """Trains embeddings of a partitioned graph.

    Args:
        graph: the partitioned graph, with or without relations.
        policy: decides which partitions are resident.
        config: the training configuration.
        folder: the folder of the embeddings; training continues from the last commit there.

    Raises:
        ValueError: if the folder holds embeddings of another partitioning or configuration.
    """

    policy: EdgePolicy
    config: LinkConfig
    graph: PartitionedGraph

    def __init__(
        self,
        graph: PartitionedGraph,
        policy: EdgePolicy,
        config: LinkConfig,
        folder: str | Path,
    ) -> None:
        self.graph, self.policy, self.config = graph, policy, config
        self.decoder: Decoder = DECODERS[config.decoder]()
        p = graph.num_partitions
        slots, group = policy.slots(p), policy.group(p)
        relations = self.decoder.initial(max(1, graph.num_relations), config.dimension).numpy()
        extras = {"relations": relations, "relation_sums": np.zeros_like(relations)}
        self.file: EmbeddingFile = open_for(Path(folder), graph, config, "", extras)
        self._restore()
        self.buffer: EmbeddingBuffer = EmbeddingBuffer(graph, self.file, slots, group)
        self.step: LinkStep = LinkStep(config, self.decoder, whole=False)
        self._place = np.full(len(self.buffer.values), -1, np.int32)

    def close(self) -> None:
        """Ends the thread and closes the file."""
        self.buffer.close()
        self.file.close()

    def rows(self, partition: int) -> Tensor:
        """Returns committed embeddings ``[nodes of the partition, D]``; only between epochs."""
        self._require_between_epochs()
        shape = (2, self.graph.partition_size, self.config.dimension)
        values, sums = np.empty(shape, np.float32)
        self.file.read(partition, values, sums)
        return torch.from_numpy(values[: self.graph.nodes_of(partition)])

    def _pass(self, on_state: Callable[[int, int], None] | None) -> Pass:
        seed, epoch = self.config.seed, self.epoch
        schedule = self.policy.epoch(
            self.graph.num_partitions, np.random.default_rng([seed, epoch, 1])
        )
        loss = torch.zeros((), dtype=torch.float64)
        edges = batches = 0
        for resident in self.buffer.run(schedule):
            if on_state is not None:
                on_state(resident.number, len(schedule.states))
            rng = np.random.default_rng([seed, epoch, 2, resident.number])
            order = rng.permutation(len(resident.edges))
            for low in range(0, len(order), self.config.batch_size):
                rows = resident.edges[order[low : low + self.config.batch_size]]
                loss += self._train_batch(rows, resident, rng)
                edges, batches = edges + len(rows), batches + 1
            self._refuse_divergence(loss)
        return Pass(loss, edges, batches, schedule)

    def _restore(self) -> None:
        """Restores the committed relation parameters."""
        self.relations: Tensor = torch.from_numpy(self.file.extras["relations"].copy())
        self.relation_sums: Tensor = torch.from_numpy(self.file.extras["relation_sums"].copy())

    def _train_batch(
        self, edges: NDArray[Any], resident: ResidentState, rng: np.random.Generator
    ) -> Tensor:
        batch = self.step.fill(edges, resident, rng, self._place)
        values = torch.from_numpy(self.buffer.values)
        touched = values.index_select(0, batch.gather)
        loss, gradient, relation_gradient = self.step(touched, self.relations, batch)
        rate = np.float32(self.config.rate)
        adagrad_rows(self.buffer.values, self.buffer.sums, batch.rows, gradient.numpy(), rate)
        if self.graph.num_relations:
            self.relation_sums.addcmul_(relation_gradient, relation_gradient)
            self.relations.addcdiv_(
                relation_gradient, self.relation_sums.sqrt() + 1e-10, value=-self.config.rate
            )
        return loss

    def _parameters(self) -> dict[str, NDArray[Any]]:
        return {
            "relations": self.relations.numpy().copy(),
            "relation_sums": self.relation_sums.numpy().copy(),
        }
