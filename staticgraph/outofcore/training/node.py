"""Node classification on sampled static batches.

A step is forward, mean loss over the real seeds, backward and the optimizer. Evaluation is on
samples, or on full neighbourhoods with PyG's layers over the whole graph in memory.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from staticgraph.errors import Diverged
from staticgraph.outofcore.buffer.resident import ResidentGraphs
from staticgraph.outofcore.disk.node_choice import chosen_nodes, class_labels
from staticgraph.outofcore.policies.schedule import NodeSchedule, NodeState
from staticgraph.outofcore.sampling.hops import HopBatch
from staticgraph.outofcore.sampling.sampled_loader import SampledLoader
from staticgraph.outofcore.training.hop_runner import HopRunner
from staticgraph.outofcore.training.layers import SampledGNN


@dataclass(frozen=True, slots=True)
class NodeEpoch:
    """What one epoch did."""

    epoch: int
    loss: float
    accuracy: float
    seeds: int
    batches: int
    partitions_read: int
    seconds: float
    waited_s: float


class NodeTrainer:
    """Trains a model on the seeds of a loader.

    Args:
        model: a :class:`SampledGNN`.
        loader: of nodes, with labels.
        rate: of Adam.
        decay: L2, as Adam's ``weight_decay``.
        mode: as of :class:`HopRunner`.
    """

    model: SampledGNN
    loader: SampledLoader

    def __init__(
        self,
        model: SampledGNN,
        loader: SampledLoader,
        *,
        rate: float = 0.01,
        decay: float = 5e-4,
        mode: str = "auto",
    ) -> None:
        self.model, self.loader = model, loader
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            model.parameters(), rate, weight_decay=decay
        )
        self.runner: HopRunner = HopRunner(model, mode)

    def train_epoch(self) -> NodeEpoch:
        """One pass over the loader's seeds.

        Raises:
            Diverged: the loss of the epoch is not finite.
        """
        started, waited = time.perf_counter(), self.loader.waited_s
        read = self.loader.states.partitions_read
        self.model.train()
        # Kept on the device: reading a number each step would make it wait for every batch.
        loss_sum, right = torch.zeros(2, dtype=torch.float64, device=self.runner.device)
        seeds = batches = 0
        for batch in self.loader:
            x, y = self._inputs(batch.hops)
            inputs = self.runner.on_device(batch.hops, x)
            loss, out = self.runner.step(batch.hops, inputs, _loss, [y])
            self.optimizer.step()
            n = len(batch.seeds)
            loss_sum += loss * n
            right += _right(out, y).sum()
            seeds, batches = seeds + n, batches + 1
        loss = float(loss_sum) / max(1, seeds)
        if not math.isfinite(loss):
            raise Diverged(
                f"the training diverged in epoch {self.loader.epoch}: the loss is {loss}. Train "
                "again with a lower rate",
                self.loader.epoch,
            )
        return NodeEpoch(
            epoch=self.loader.epoch,
            loss=loss,
            accuracy=float(right) / max(1, seeds),
            seeds=seeds,
            batches=batches,
            partitions_read=self.loader.states.partitions_read - read,
            seconds=time.perf_counter() - started,
            waited_s=self.loader.waited_s - waited,
        )

    def evaluate_whole(self, nodes: ArrayLike, labels: Any) -> float:
        """Accuracy on full neighbourhoods, with the whole graph in memory.

        Args:
            nodes: the caller's numbers, or a mask.
            labels: ``[N]`` classes in the caller's order.

        Raises:
            BadGraph, ValueError: nodes that the graph does not have; labels that are no classes.
        """
        graph = self.loader.graph
        asked = chosen_nodes(nodes, graph.num_nodes, "nodes")
        classes = class_labels(labels, graph.num_nodes)
        everything = tuple(range(graph.num_partitions))
        states = ResidentGraphs(graph)
        schedule = NodeSchedule(graph.num_partitions, (NodeState(everything, everything),))
        (resident,) = states.run(schedule)
        states.close()
        neighbours = resident.neighbours
        source = torch.from_numpy(neighbours.indices[0].astype(np.int64))
        target = torch.repeat_interleave(
            torch.arange(neighbours.rows), torch.from_numpy(np.diff(neighbours.pointers[0]))
        )
        new = np.empty(graph.num_nodes, np.int64)
        new[graph.node_ids] = np.arange(graph.num_nodes)
        rows = torch.from_numpy(resident.rows(new[asked]))
        x = torch.from_numpy(resident.features).float().to(self.runner.device)
        edges = torch.stack([source, target]).to(self.runner.device)
        self.model.eval()
        with torch.no_grad():
            out = self.model.whole(x, edges).cpu()[rows]
        y = torch.from_numpy(classes[asked])
        return float(_right(out, y).float().mean())

    def _inputs(self, hops: HopBatch) -> tuple[Tensor, Tensor]:
        if hops.x is None:
            raise ValueError("the batch has no features: pass features= to outofcore.partition")
        if hops.y is None:
            raise ValueError("the loader has no labels: pass labels= to SampledLoader")
        return hops.x.float(), hops.y.to(self.runner.device, non_blocking=True)


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, ignore_index=-1)


def _right(out: Tensor, y: Tensor) -> Tensor:
    """``[S]`` whether a row's largest output is its class; the first of NaNs is no answer."""
    return (out.argmax(1) == y) & out.isfinite().all(1)
