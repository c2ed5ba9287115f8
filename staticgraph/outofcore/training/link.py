"""Link prediction: trains embeddings of all nodes of a graph that does not fit in memory.

An epoch follows a policy's schedule: the buffer loads the states, and the edges of a state's cells
are shuffled and trained on in batches. A decoder scores an edge from the embeddings of its ends or,
with an encoder, from the output of a graph network over their sampled neighbourhoods. The touched
rows get Adagrad's update at once, so staleness is 0, and the end of the epoch is a commit. A thread
samples the neighbourhoods of a state's batches ahead; values are gathered just before a batch's
step, after all earlier updates. The encoder sees only which nodes are neighbours; the decoder sees
relations.

An epoch whose loss, embeddings or parameters are not finite is not committed: the disk keeps the
last good epoch, and the error names the one that diverged. Loss and parameters are checked when a
state ends, embeddings as they are written.

Random draws depend only on (seed, epoch, state), so an interrupted epoch runs again exactly as it
would have. Sources: Marius, OSDI 2021, sections 2 and 3; MariusGNN, EuroSys 2023, sections 4 and 7.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from staticgraph.errors import Diverged
from staticgraph.outofcore.disk.embeddings import EmbeddingFile, bytes_of, open_embeddings
from staticgraph.outofcore.disk.graph import Direction, PartitionedGraph
from staticgraph.outofcore.policies.policy import EdgePolicy, edge_permutation_bias
from staticgraph.outofcore.sampling.buffer import PartitionBuffer
from staticgraph.outofcore.sampling.link_sampling import LinkEnds
from staticgraph.outofcore.sampling.sampled_loader import SampledBatch, SampledLoader
from staticgraph.outofcore.training.gnn import reads_gcn_weights, run_whole
from staticgraph.outofcore.training.link_step import (
    DECODERS,
    EPSILON,
    DistMult,
    LinkConfig,
    adagrad_rows,
    link_loss,
)
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.numeric_options import real_option


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


class LinkTrainer:
    """Trains embeddings of a partitioned graph and, if there is one, an encoder over them.

    If an epoch fails, diverges or is interrupted, the buffer, the file and all other trained
    parameters return to their state at the start of the epoch.

    Args:
        graph: the partitioned graph, with or without relations.
        policy: decides which partitions are resident.
        config: the training configuration; with an encoder, ``negatives`` are seeds of a sample, so
            fewer chunks are cheaper.
        folder: the folder of the embeddings; training continues from the last commit there.
        encoder: any PyG model from ``x [N, config.dimension]`` and ``edge_index`` to a row per
            node; its parameters are committed with the embeddings.
        fanouts: for the encoder: neighbours per node and direction, hop by hop; one per layer.
        direction: the direction of sampling.
        encoder_rate: the Adagrad learning rate of the encoder; relations use ``config.rate``.
        exclude: remove a batch's own edges from its samples.
        mode: of the encoder, as for :class:`staticgraph.StaticGraphRunner`.
        **options: others of the runner.

    Attributes:
        runner: runs the encoder; None without one.

    Raises:
        ValueError: if there are fan-outs without an encoder or the reverse, or the folder holds
            embeddings of another partitioning or configuration.
    """

    policy: EdgePolicy
    config: LinkConfig
    graph: PartitionedGraph
    encoder: nn.Module | None
    _in_epoch: bool = False

    def __init__(
        self,
        graph: PartitionedGraph,
        policy: EdgePolicy,
        config: LinkConfig,
        folder: str | Path,
        *,
        encoder: nn.Module | None = None,
        fanouts: Sequence[int] = (),
        direction: Direction = "both",
        encoder_rate: float = 0.01,
        exclude: bool = True,
        mode: str = "auto",
        **options: Any,
    ) -> None:
        if (encoder is None) != (not len(fanouts)):
            raise ValueError(
                f"encoder={encoder} with fanouts={list(fanouts)}: an encoder runs over sampled "
                "neighbourhoods; give both or neither"
            )
        self.graph, self.policy, self.config, self.encoder = graph, policy, config, encoder
        self.decoder: DistMult = DECODERS[config.decoder]()
        layers = {} if encoder is None else dict(encoder.named_parameters())
        self._device = next((each.device for each in layers.values()), torch.device("cpu"))
        run, width = f"{config} {graph.num_nodes} {graph.num_edges} ", config.dimension
        if encoder is not None:
            run += f"{encoder} {list(fanouts)} {direction} {encoder_rate} {exclude}"
            # The width of what it gives for two nodes without edges.
            nothing, x = np.empty((0, 2), np.int64), np.zeros((2, width), np.float32)
            width = run_whole(encoder, nothing, x).size(1)
        relations = self.decoder.initial(max(1, graph.num_relations), width).to(self._device)
        # Without relations, a decoder's are those of one fixed relation.
        self._relations = nn.Parameter(relations, requires_grad=graph.num_relations > 0)
        real_option("encoder_rate", encoder_rate, 0.0)  # kept as it is in the folder's text
        groups: list[dict[str, Any]] = [
            {"params": [self._relations], "lr": config.rate},
            {"params": list(layers.values()), "lr": encoder_rate},
        ]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adagrad(groups, eps=float(EPSILON))
        # What is committed with the embeddings, by name: parameters and their Adagrad sums.
        self._trained: dict[str, Tensor] = {}
        trained = {f"encoder.{name}": each for name, each in layers.items()}
        for name, parameter in ({"relations": self._relations} | trained).items():
            self._trained[f"parameter.{name}"] = parameter
            self._trained[f"sum.{name}"] = self.optimizer.state[parameter]["sum"]
        # Options that cannot be are refused before there are embeddings that were made with them.
        self.loader: SampledLoader = SampledLoader(
            graph, policy, fanouts, config.batch_size, "link", negatives=config.drawn,
            chunks=config.chunks, degree_fraction=config.degree_fraction, exclude=exclude,
            gcn_norm=reads_gcn_weights(encoder), direction=direction, seed=config.seed,
        )  # fmt: skip

        def initial(partition: int) -> NDArray[np.float32]:
            """Returns ``[rows, D]``, which depends only on the seed and the partition."""
            rng = np.random.default_rng([config.seed, 0, partition])
            shape = graph.partition_size, config.dimension
            return config.spread * rng.standard_normal(shape, np.float32)

        self.file: EmbeddingFile = open_embeddings(
            Path(folder), graph, config.dimension, run, initial,
            {"history": bytes_of("[]"), **self._arrays()},
        )  # fmt: skip
        self._restore()
        self.buffer: PartitionBuffer = PartitionBuffer(
            graph, None if encoder is None else direction, self.file
        )
        self.loader.states = self.buffer
        self.runner: StaticGraphRunner | None = None
        if encoder is not None:
            subject = Subject(encoder, differentiable=("x",), check_finite=0)
            self.runner = StaticGraphRunner(
                subject, self.loader.plan, mode, distributed="off", **options
            )
        self._encoded: tuple[int, Tensor] | None = None

    @property
    def epoch(self) -> int:
        """Number of committed epochs."""
        return self.file.epoch

    @property
    def history(self) -> tuple[LinkEpoch, ...]:
        """The results of all committed epochs, including those of earlier runs."""
        text = self.file.extras["history"].tobytes()
        return tuple(LinkEpoch(**values) for values in json.loads(text))

    @property
    def relations(self) -> Tensor:
        """``[2, R, D]`` relation parameters, as a copy on the CPU."""
        return self._relations.detach().cpu().clone()

    def close(self) -> None:
        """Ends the threads and closes the file."""
        self.loader.close()
        if self.runner is not None:
            self.runner.close()
        self.file.close()

    def rows(self, partition: int) -> Tensor:
        """Returns committed rows ``[nodes of the partition, D]``; only between epochs.

        They are the embeddings or, with an encoder, its output on full neighbourhoods: computed
        once per epoch, with the whole graph and all embeddings in memory.
        """
        if self._in_epoch:  # only some partitions on disk have been updated
            raise RuntimeError(
                f"epoch {self.epoch + 1} is under way, and what is on the disk is partly of it: "
                "read and evaluate between epochs"
            )
        if self.encoder is None:
            return torch.from_numpy(self._values(partition))
        if self._encoded is None or self._encoded[0] != self.epoch:
            x = np.concatenate([self._values(k) for k in range(self.graph.num_partitions)])
            edges, direction = self.graph.read_edges(), self.loader.direction
            self._encoded = self.epoch, run_whole(self.encoder, edges, x, direction)
        return self._encoded[1].split(self.graph.partition_size)[partition]

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
            self.loader.epoch = self.epoch
            schedule = self.loader.schedule(self.epoch)
            if self.encoder is not None:
                self.encoder.train()
            loss = torch.zeros((), dtype=torch.float64, device=self._device)
            edges, batches, state = 0, 0, -1
            for batch in self.loader:
                if batch.state != state:
                    self._refuse_divergence(loss)
                    state = batch.state
                    if on_state is not None:
                        on_state(state, len(schedule.states))
                assert batch.ends is not None
                loss += self._train_batch(batch, batch.ends)
                edges, batches = edges + int(batch.ends.mask.sum()), batches + 1
            self._refuse_divergence(loss)
            # Durable before the clock is read, since the epoch's figures are part of the commit.
            self.file.sync()
            result = LinkEpoch(
                epoch=self.epoch + 1,
                loss=float(loss) / max(1, edges),
                edges=edges,
                batches=batches,
                states=len(schedule.states),
                swaps=schedule.swaps,
                partitions_read=schedule.reads,
                bytes_read=self.file.bytes_read - read_before,
                bias=edge_permutation_bias(schedule, self.graph.cell_sizes),
                seconds=time.perf_counter() - started,
                waited_s=self.buffer.waited_s - waited,
            )
            history = json.dumps([asdict(each) for each in (*self.history, result)])
            changed = {"history": bytes_of(history), **self._arrays()}
            self.file.commit(self.file.extras | changed)
        except BaseException:
            # Also after an interrupt: the next epoch must start from the same state as this one.
            self.buffer.abandon()
            self.file.rollback()
            self._restore()
            raise
        finally:
            self._in_epoch = False
        return result

    def _refuse_divergence(self, loss: Tensor) -> None:
        """Raises Diverged if the loss, embeddings or parameters are not finite."""
        wild = [name for name, each in self._trained.items() if not each.isfinite().all()]
        reason = f"{wild[0]} is not finite" if wild else ""
        if self.file.not_finite:
            reason = f"embeddings of partition {min(self.file.not_finite)} are not finite"
        if not math.isfinite(value := float(loss)):
            reason = f"the loss is {value}"
        if reason:
            number = self.epoch + 1
            raise Diverged(
                f"the training diverged in epoch {number}: {reason}; epoch {self.epoch} is what "
                f"{self.file.folder} holds. Train again with a lower rate",
                number,
            )

    def _train_batch(self, batch: SampledBatch, ends: LinkEnds) -> Tensor:
        """Takes one step; returns the loss, summed over the edges."""
        config, rows = self.config, batch.rows
        taken = rows
        if batch.graph is not None:  # padding rows repeat a real one
            taken = np.resize(rows, batch.graph.num_nodes)
            taken[len(rows) :] = rows[-1]
        x = torch.from_numpy(self.buffer.values).index_select(0, torch.from_numpy(taken))
        x = x.to(self._device).requires_grad_()
        out = x
        if self.runner is not None and batch.graph is not None:
            out = self.runner(batch.graph.to(self._device).replace(x=x))
        chunks = len(ends.mask) * config.chunks // config.batch_size
        ends = LinkEnds(*(each.to(self._device) for each in ends))
        loss = link_loss(self.decoder, out, self._relations, ends, chunks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        assert x.grad is not None
        gradient = x.grad[: len(rows)].cpu().numpy()
        rate = np.float32(config.rate)
        adagrad_rows(self.buffer.values, self.buffer.sums, rows, gradient, rate)
        return loss.detach()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Returns copies of what is trained, by name."""
        return {k: each.detach().cpu().numpy().copy() for k, each in self._trained.items()}

    def _restore(self) -> None:
        """Restores what was committed."""
        with torch.no_grad():
            for name, each in self._trained.items():
                each.copy_(torch.from_numpy(self.file.extras[name]))

    def _values(self, partition: int) -> NDArray[np.float32]:
        """Returns ``[nodes of the partition, D]``: the embeddings on disk."""
        rows = self.graph.nodes_of(partition)
        shape = 2, self.graph.partition_size, self.config.dimension
        values, sums = np.empty(shape, np.float32)
        self.file.read(partition, values, sums)
        return values[:rows]
