"""Link prediction: embeddings of all nodes, trained where the graph does not fit.

A batch is B edges, cut into chunks; the edges of a chunk share its negatives, drawn from the nodes
that are resident. Both directions are trained: the destination among negatives given source and
relation, and the source given destination and the way back. The loss is the sum of softmax
cross-entropies. The step has static shapes: B edges (the last batch of a state is padded and
masked), C chunks, K negatives a side, and the touched rows, at most 2B + 2CK of them, gathered into
one array that alone needs a gradient; it meets Adagrad's update row by row. Staleness is 0.

Randomness depends on (seed, epoch, state) alone, so an epoch that was cut short runs again as it
would have. Source: Marius, OSDI 2021, sections 2 and 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.outofcore.adagrad import adagrad_rows, distinct
from staticgraph.outofcore.bias import edge_permutation_bias
from staticgraph.outofcore.buffer import EmbeddingBuffer, Resident
from staticgraph.outofcore.decoders import DECODERS, Decoder
from staticgraph.outofcore.embeddings import EmbeddingFile, FloatArray
from staticgraph.outofcore.graph import PartitionedGraph
from staticgraph.outofcore.policy import EdgePolicy


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """How to train.

    Attributes:
        decoder: ``distmult``, ``complex`` or ``transe``.
        dimension: D.
        batch_size: B, edges in a step.
        chunks: C; they divide the batch.
        negatives: K, nodes that the edges of a chunk share, on each side.
        degree_fraction: share of the negatives drawn as ends of the state's edges (so by degree);
            the others are drawn uniformly from the resident nodes.
        rate: Adagrad's.
        spread: standard deviation of the first embeddings.
        seed: of everything random.
    """

    decoder: str = "distmult"
    dimension: int = 50
    batch_size: int = 1000
    chunks: int = 10
    negatives: int = 500
    degree_fraction: float = 0.0
    rate: float = 0.1
    spread: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder={self.decoder!r}; choose one of {', '.join(DECODERS)}")
        if min(self.dimension, self.batch_size, self.chunks, self.negatives) < 1:
            raise ValueError(
                f"dimension, batch_size, chunks and negatives must be positive: {self}"
            )
        if self.batch_size % self.chunks:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of chunks={self.chunks}"
            )
        if not 0.0 <= self.degree_fraction <= 1.0:
            raise ValueError(f"degree_fraction={self.degree_fraction} is a share, 0 to 1")


@dataclass(frozen=True, slots=True)
class LinkEpoch:
    """What one epoch did. Seconds of waiting are part of the seconds."""

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


class LinkTrainer:
    """Trains embeddings of a partitioned graph.

    Args:
        graph: with or without relations.
        policy: what is resident when.
        config: how to train.
        folder: where the embeddings live; training goes on from what is committed there.

    Raises:
        ValueError: the folder holds embeddings that were trained with another configuration.
    """

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
        self.file = self._open(Path(folder))
        self._restore()
        self.buffer = EmbeddingBuffer(graph, self.file, slots, group)
        self.step = LinkStep(config, self.decoder)
        self._place = np.full(len(self.buffer.values), -1, np.int32)

    @property
    def epoch(self) -> int:
        """Epochs that are committed."""
        return self.file.epoch

    def train_epoch(self, on_state: Callable[[int, int], None] | None = None) -> LinkEpoch:
        """One pass over all edges, committed at its end.

        Args:
            on_state: told the number of the state that begins and of how many.
        """
        try:
            return self._train_epoch(on_state)
        except BaseException:
            # Also an interrupt: the next epoch must begin where this one did.
            self.buffer.abandon()
            self.file.rollback()
            self._restore()
            raise

    def close(self) -> None:
        """Ends the thread and closes the file."""
        self.buffer.close()
        self.file.close()

    def _train_epoch(self, on_state: Callable[[int, int], None] | None) -> LinkEpoch:
        started, waited = time.perf_counter(), self.buffer.waited_s
        read_before = self.file.bytes_read
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
        self.file.commit(self._extras())
        return LinkEpoch(
            epoch=self.epoch,
            loss=float(loss) / max(1, edges),
            edges=edges,
            batches=batches,
            states=len(schedule.states),
            swaps=schedule.swaps,
            partitions_read=schedule.reads,
            bytes_read=self.file.bytes_read - read_before,
            bias=edge_permutation_bias(schedule, self.graph.bucket_sizes),
            seconds=time.perf_counter() - started,
            waited_s=self.buffer.waited_s - waited,
        )

    def _restore(self) -> None:
        """Relation parameters as they were committed."""
        self.relations = torch.from_numpy(self.file.extras["relations"].copy())
        self.relation_sums = torch.from_numpy(self.file.extras["relation_sums"].copy())

    def _train_batch(
        self, edges: NDArray[Any], resident: Resident, rng: np.random.Generator
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

    def _open(self, folder: Path) -> EmbeddingFile:
        identity = np.frombuffer(
            f"{self.config} {self.graph.num_nodes} {self.graph.num_edges}".encode(), np.uint8
        )
        try:
            file = EmbeddingFile(folder)
        except FileNotFoundError:
            return self._create(folder, identity)
        if not np.array_equal(file.extras["identity"], identity):
            raise ValueError(
                f"{folder} holds embeddings trained as {bytes(file.extras['identity']).decode()}; "
                f"this is {bytes(identity).decode()}: go on with the same, or choose another folder"
            )
        return file

    def _create(self, folder: Path, identity: NDArray[np.uint8]) -> EmbeddingFile:
        graph, config = self.graph, self.config
        relations = self.decoder.initial(max(1, graph.num_relations), config.dimension)
        shape = (graph.partition_size, config.dimension)

        def initial(partition: int) -> FloatArray:
            rng = np.random.default_rng([config.seed, 0, partition])
            return config.spread * rng.standard_normal(shape, np.float32)

        extras = {
            "identity": identity,
            "relations": relations.numpy(),
            "relation_sums": np.zeros_like(relations.numpy()),
        }
        return EmbeddingFile.create(
            folder, graph.num_partitions, graph.partition_size, config.dimension, initial, extras
        )

    def _extras(self) -> dict[str, NDArray[Any]]:
        return {
            "identity": self.file.extras["identity"],
            "relations": self.relations.numpy().copy(),
            "relation_sums": self.relation_sums.numpy().copy(),
        }


@dataclass(slots=True)
class LinkBatch:
    """One padded batch: positions are among the touched rows.

    Attributes:
        gather: ``[2B + 2CK]`` rows of the buffer, touched ones first, then row 0 as padding.
        rows: the touched ones alone.
        source, destination: ``[B]``.
        relation: ``[B]``.
        negatives: ``[2, C, K]``: of the destination side, of the source side.
        mask: ``[B]`` float, 0 for padding.
    """

    gather: Tensor
    rows: NDArray[np.int64]
    source: Tensor
    destination: Tensor
    relation: Tensor
    negatives: Tensor
    mask: Tensor


class LinkStep:
    """Loss and gradients of a batch, in static shapes.

    Args:
        config: shapes.
        decoder: scores.
        compile: given to ``torch.compile``; None runs in eager, which is as fast on a CPU.
    """

    def __init__(
        self, config: LinkConfig, decoder: Decoder, compile: dict[str, Any] | None = None
    ) -> None:
        self.config, self.decoder = config, decoder
        self._loss: Callable[..., Tensor] = self.loss
        if compile is not None:
            self._loss = torch.compile(self.loss, fullgraph=True, dynamic=False, **compile)

    def fill(
        self,
        edges: NDArray[Any],
        resident: Resident,
        rng: np.random.Generator,
        place: NDArray[np.int32],
    ) -> LinkBatch:
        """Draws the negatives and numbers the touched rows; ``edges`` is ``[n <= B, 2 or 3]``."""
        b, c, k = self.config.batch_size, self.config.chunks, self.config.negatives
        n = len(edges)
        negatives = resident.draw(rng, (2, c, k))
        by_degree = round(self.config.degree_fraction * k)
        if by_degree:
            pool = resident.edges
            picked = rng.integers(len(pool), size=(2, c, by_degree))
            ends = np.where(rng.integers(2, size=picked.shape), 0, pool.shape[1] - 1)
            negatives[..., :by_degree] = pool[picked, ends]
        nodes = np.full(2 * b + 2 * c * k, edges[0, 0], np.int64)
        nodes[:n], nodes[b : b + n] = edges[:, 0], edges[:, -1]
        nodes[2 * b :] = negatives.ravel()
        rows = resident.rows(nodes)
        gather, local = np.zeros(len(rows), np.int64), np.empty(len(rows), np.int64)
        count = distinct(rows, place, gather, local)
        relation = np.zeros(b, np.int64)
        if edges.shape[1] == 3:
            relation[:n] = edges[:, 1]
        mask = np.zeros(b, np.float32)
        mask[:n] = 1.0
        positions = torch.from_numpy(local)
        return LinkBatch(
            gather=torch.from_numpy(gather),
            rows=gather[:count],
            source=positions[:b],
            destination=positions[b : 2 * b],
            relation=torch.from_numpy(relation),
            negatives=positions[2 * b :].view(2, c, k),
            mask=torch.from_numpy(mask),
        )

    def loss(
        self,
        touched: Tensor,
        relations: Tensor,
        source: Tensor,
        destination: Tensor,
        relation: Tensor,
        negatives: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """The sum over real edges and both directions of the softmax cross-entropy."""
        c = self.config.chunks
        ends = touched[source], touched[destination]
        total = touched.new_zeros(())
        for way in (0, 1):
            query = self.decoder.query(ends[way], relations[way, relation])
            positive = self.decoder.score(query, ends[1 - way])
            others = self.decoder.scores(
                query.view(c, -1, query.size(-1)), touched[negatives[way]]
            ).flatten(0, 1)
            against = torch.logaddexp(others.logsumexp(-1), positive)
            total = total + ((against - positive) * mask).sum()
        return total

    def __call__(
        self, touched: Tensor, relations: Tensor, batch: LinkBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, and its gradients by the touched rows ``[2B + 2CK, D]`` and the relations."""
        touched, relations = touched.requires_grad_(), relations.detach().requires_grad_()
        loss = self._loss(
            touched, relations, batch.source, batch.destination, batch.relation,
            batch.negatives, batch.mask,
        )  # fmt: skip
        gradient, relation_gradient = torch.autograd.grad(loss, [touched, relations])
        return loss.detach(), gradient, relation_gradient
