"""Link prediction with a graph neural network over embeddings that pass through the buffer.

A sampled neighbourhood of each endpoint is encoded, and a decoder scores the result. An epoch
follows a policy's schedule, as in :mod:`staticgraph.outofcore.training.link`. A thread samples the
neighbourhoods of a state's batches ahead, since they do not depend on values; the values of a batch
are gathered just before its step, after all earlier updates, so staleness is 0. All sampled nodes
get a gradient and an Adagrad update of their rows; encoder and relations are updated by dense
Adagrad and committed with the embeddings, so a killed run continues after its last committed epoch.

The encoder does not use relations: GraphSAGE, GCN and GAT see only which nodes are neighbours, and
the decoder sees relations. Source: MariusGNN, EuroSys 2023, sections 4 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from staticgraph.outofcore.buffer.buffer import EmbeddingBuffer
from staticgraph.outofcore.buffer.resident_embeddings import ResidentEmbeddings
from staticgraph.outofcore.disk.embeddings import EmbeddingFile
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.outofcore.disk.neighbours import Direction
from staticgraph.outofcore.policies.policy import EdgePolicy
from staticgraph.outofcore.sampling.sampled_batch import SampledBatch
from staticgraph.outofcore.sampling.sampled_loader import SampledLoader
from staticgraph.outofcore.training.adagrad import EPSILON, adagrad_rows
from staticgraph.outofcore.training.committed_epochs import CommittedEpochs, Pass
from staticgraph.outofcore.training.decoders import DECODERS, Decoder
from staticgraph.outofcore.training.first_embeddings import open_for
from staticgraph.outofcore.training.hop_runner import HopRunner
from staticgraph.outofcore.training.layers import Hops, SampledGNN
from staticgraph.outofcore.training.link_step import LinkConfig, LinkStep
from staticgraph.text.how_many import how_many


class EncodedLinkLoss(nn.Module):
    """The loss of a batch of edges over its padded neighbourhood.

    Args:
        encoder: encodes the seeds.
        step: computes the loss from the encoder's output.
        relations: ``[2, R, D']`` initial parameters.
    """

    def __init__(self, encoder: SampledGNN, step: LinkStep, relations: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.relations: nn.Parameter = nn.Parameter(relations)
        self._step = step

    def forward(self, x: Tensor, hops: Hops, *ends: Tensor) -> Tensor:
        """Returns the loss for ``x [R, D]``; ``ends`` go to :meth:`LinkStep.loss`."""
        return self._step.loss(self.encoder(x, hops), self.relations, *ends)


class EncodedLinkTrainer(CommittedEpochs):
    """Trains embeddings and a graph neural network over them.

    Args:
        graph: the partitioned graph, with or without relations.
        policy: decides which partitions are resident.
        config: the configuration; ``negatives`` are seeds of a sample, so fewer chunks are cheaper.
        encoder: maps rows of ``config.dimension`` to the decoder's width.
        fanouts: neighbours per node and direction, hop by hop; one per layer of the encoder.
        folder: the folder of the embeddings; training continues from the last commit there.
        direction: the direction of sampling.
        encoder_rate: the Adagrad learning rate of the encoder; relations use ``config.rate``.
        exclude: remove a batch's own edges from its samples.
        mode: as for :class:`HopRunner`.

    Raises:
        ValueError: if fan-outs or dimension do not fit the encoder, or the folder was trained
            differently.
    """

    policy: EdgePolicy
    config: LinkConfig
    encoder: SampledGNN
    graph: PartitionedGraph

    def __init__(
        self,
        graph: PartitionedGraph,
        policy: EdgePolicy,
        config: LinkConfig,
        encoder: SampledGNN,
        fanouts: Sequence[int],
        folder: str | Path,
        *,
        direction: Direction = "both",
        encoder_rate: float = 0.01,
        exclude: bool = True,
        mode: str = "auto",
    ) -> None:
        _check_encoder(encoder, config, fanouts)
        self.graph, self.policy, self.config, self.encoder = graph, policy, config, encoder
        self.decoder: Decoder = DECODERS[config.decoder]()
        relations = self.decoder.initial(max(1, graph.num_relations), encoder.out_channels)
        device = next(encoder.parameters()).device
        self.model: EncodedLinkLoss = EncodedLinkLoss(
            encoder, LinkStep(config, self.decoder), relations.to(device)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.Adagrad(
            [
                {"params": [self.model.relations], "lr": config.rate},
                {"params": list(encoder.parameters())},
            ],
            lr=encoder_rate,
            eps=float(EPSILON),
        )
        self.runner: HopRunner = HopRunner(self.model, mode)
        identity = f"{encoder} {list(fanouts)} {direction} {encoder_rate} {exclude}"
        self.file: EmbeddingFile = open_for(
            Path(folder), graph, config, identity, self._parameters()
        )
        self._restore()
        p = graph.num_partitions
        self.buffer: EmbeddingBuffer = EmbeddingBuffer(
            graph, self.file, policy.slots(p), policy.group(p), direction
        )
        self._direction: Direction = direction
        self._encoded: tuple[int, Tensor] | None = None
        self.loader: SampledLoader = SampledLoader(
            graph,
            policy,
            list(fanouts),
            config.batch_size,
            "link",
            negatives=2 * config.chunks * config.negatives,
            degree_fraction=config.degree_fraction,
            exclude=exclude,
            direction=direction,
            seed=config.seed,
            states=ResidentEmbeddings(self.buffer),
        )

    @property
    def relations(self) -> Tensor:
        """``[2, R, D']`` relation parameters, as a copy on the CPU."""
        return self.model.relations.detach().cpu()

    def close(self) -> None:
        """Ends the threads and closes the file."""
        self.loader.close()
        self.runner.close()
        self.file.close()

    def rows(self, partition: int) -> Tensor:
        """Returns ``[nodes of the partition, D']`` on full neighbourhoods; only between epochs.

        They are computed once per epoch, with the whole graph and all embeddings in memory.
        """
        self._require_between_epochs()
        if self._encoded is None or self._encoded[0] != self.epoch:
            self._encoded = self.epoch, self._encode()
        low = partition * self.graph.partition_size
        return self._encoded[1][low : low + self.graph.nodes_of(partition)]

    def _pass(self, on_state: Callable[[int, int], None] | None) -> Pass:
        self.loader.epoch = self.epoch
        schedule = self.policy.epoch(
            self.graph.num_partitions, np.random.default_rng([self.config.seed, self.epoch, 1])
        )
        self.model.train()
        loss = torch.zeros((), dtype=torch.float64, device=self.runner.device)
        edges = batches = 0
        state = -1
        for batch in self.loader:
            if batch.state != state:
                self._refuse_divergence(loss)
                state = batch.state
                if on_state is not None:
                    on_state(state, len(schedule.states))
            loss += self._train_batch(batch)
            assert batch.ends is not None
            edges, batches = edges + int(batch.ends.mask.sum()), batches + 1
        return Pass(loss, edges, batches, schedule)

    def _train_batch(self, batch: SampledBatch) -> Tensor:
        hops, ends, config = batch.hops, batch.ends, self.config
        assert ends is not None
        x = torch.from_numpy(self.buffer.values).index_select(0, hops.rows)
        negatives = ends.negatives.view(2, config.chunks, config.negatives)
        more = [ends.source, ends.destination, ends.relation, negatives, ends.mask.float()]
        inputs = self.runner.on_device(hops, x, more)
        loss, _, by_x = self.runner.step(hops, inputs, lambda loss: loss, wants_x=True)
        self.optimizer.step()
        # Real rows are distinct; padding rows have zero gradients and are not updated.
        gradient = by_x.cpu()[hops.mask].numpy()
        rows = hops.rows[hops.mask].numpy()
        rate = np.float32(config.rate)
        adagrad_rows(self.buffer.values, self.buffer.sums, rows, gradient, rate)
        return loss

    # ------------------------------------------------------------------ what is committed

    def _parameters(self) -> dict[str, NDArray[Any]]:
        """Returns the parameters and their Adagrad sums, by name."""
        found: dict[str, NDArray[Any]] = {}
        for name, parameter in self.model.named_parameters():
            found[f"parameter.{name}"] = parameter.detach().cpu().numpy().copy()
            found[f"sum.{name}"] = self.optimizer.state[parameter]["sum"].cpu().numpy().copy()
        return found

    def _restore(self) -> None:
        """Restores the committed parameters and sums."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(torch.from_numpy(self.file.extras[f"parameter.{name}"]))
                total = self.optimizer.state[parameter]["sum"]
                total.copy_(torch.from_numpy(self.file.extras[f"sum.{name}"]))

    def _encode(self) -> Tensor:
        graph, p, size = self.graph, self.graph.num_partitions, self.graph.partition_size
        values, sums = np.empty((2, p * size, self.config.dimension), np.float32)
        for k in range(p):
            self.file.read(k, values[k * size : (k + 1) * size], sums[k * size : (k + 1) * size])
        every = graph.read_cells([(i, j) for i in range(p) for j in range(p)])
        ends = torch.from_numpy(np.stack([every[:, 0], every[:, -1]]).astype(np.int64))
        ways = {"in": [ends], "out": [ends.flip(0)], "both": [ends, ends.flip(0)]}
        edges = torch.cat(ways[self._direction], 1).to(self.runner.device)
        self.model.eval()
        with torch.no_grad():
            x = torch.from_numpy(values[: graph.num_nodes]).to(self.runner.device)
            return self.encoder.whole(x, edges).cpu()


def _check_encoder(encoder: SampledGNN, config: LinkConfig, fanouts: Sequence[int]) -> None:
    if len(fanouts) != len(encoder.layers):
        raise ValueError(
            f"fanouts={list(fanouts)} for an encoder of "
            f"{how_many(len(encoder.layers), 'layer')}: give one per layer"
        )
    if encoder.in_channels != config.dimension:
        raise ValueError(
            f"the encoder takes rows of {encoder.in_channels}, the embeddings have "
            f"{config.dimension}: give both the same"
        )
