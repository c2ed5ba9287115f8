"""Node classification on sampled static batches.

A step consists of the forward pass, the mean loss over the seeds with a label, the backward pass
and the optimizer. Evaluation uses full neighbourhoods, with PyG's layers over the whole graph in
memory.
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
from staticgraph.text.how_many import how_many


@dataclass(frozen=True, slots=True)
class NodeEpoch:
    """The results of one epoch; loss and accuracy are means over the seeds that have a label."""

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
        loader: a loader of nodes, with labels.
        rate: the learning rate of Adam.
        decay: the L2 penalty, as Adam's ``weight_decay``.
        mode: as for :class:`HopRunner`.

    Raises:
        ValueError: if the loader is not one of nodes, or the model does not fit its hops, features
            or classes.
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
        _require_fit(model, loader)
        self.model, self.loader = model, loader
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            model.parameters(), rate, weight_decay=decay
        )
        self.runner: HopRunner = HopRunner(model, mode)

    def train_epoch(self) -> NodeEpoch:
        """Trains one pass over the loader's seeds; a batch without labels is skipped.

        Raises:
            Diverged: if the loss of the epoch is not finite.
            ValueError: if no seed has a label, or the loader has no labels or features.
        """
        started, waited = time.perf_counter(), self.loader.waited_s
        read = self.loader.states.partitions_read
        self.model.train()
        # Kept on the device: reading a number at each step would synchronise with every batch.
        loss_sum, right = torch.zeros(2, dtype=torch.float64, device=self.runner.device)
        seeds = batches = labelled = 0
        for batch in self.loader:
            seeds, batches = seeds + len(batch.seeds), batches + 1
            x, y = self._inputs(batch.hops)
            # Counted on the host; the mean over no labels and its gradients would be NaN.
            n = 0 if batch.hops.y is None else int((batch.hops.y >= 0).sum())
            if not n:
                continue
            inputs = self.runner.on_device(batch.hops, x)
            loss, out = self.runner.step(batch.hops, inputs, _loss, [y])
            self.optimizer.step()
            loss_sum += loss * n
            right += _right(out, y).sum()
            labelled += n
        if not labelled:
            raise ValueError(
                f"none of the {how_many(seeds, 'seed')} has a label (all are -1): give seeds= that "
                "have one"
            )
        loss = float(loss_sum) / labelled
        if not math.isfinite(loss):
            raise Diverged(
                f"the training diverged in epoch {self.loader.epoch}: the loss is {loss}. Train "
                "again with a lower rate",
                self.loader.epoch,
            )
        return NodeEpoch(
            epoch=self.loader.epoch,
            loss=loss,
            accuracy=float(right) / labelled,
            seeds=seeds,
            batches=batches,
            partitions_read=self.loader.states.partitions_read - read,
            seconds=time.perf_counter() - started,
            waited_s=self.loader.waited_s - waited,
        )

    def evaluate_whole(self, nodes: ArrayLike, labels: Any) -> float:
        """Returns the accuracy on full neighbourhoods, in the loader's direction.

        The whole graph is loaded into memory.

        Args:
            nodes: the caller's node numbers, or a mask; nodes without a label are ignored.
            labels: ``[N]`` classes in the caller's order, -1 for none.

        Raises:
            BadGraph, ValueError: if a node does not exist, no node has a label, or labels are not
                classes.
        """
        graph = self.loader.graph
        asked = chosen_nodes(nodes, graph.num_nodes, "nodes")
        classes = class_labels(labels, graph.num_nodes)
        if not (known := classes[asked] >= 0).any():
            raise ValueError(
                f"of {how_many(len(asked), 'node')} to evaluate on none has a label: give others"
            )
        asked = asked[known]
        everything = tuple(range(graph.num_partitions))
        states = ResidentGraphs(graph, self.loader.direction)
        schedule = NodeSchedule(graph.num_partitions, (NodeState(everything, everything),))
        (resident,) = states.run(schedule)
        states.close()
        near = resident.neighbours
        source = torch.from_numpy(np.concatenate(near.indices).astype(np.int64))
        degrees = torch.from_numpy(np.concatenate([np.diff(ways) for ways in near.pointers]))
        rows_of_ways = torch.arange(near.rows).repeat(len(near.pointers))
        target = torch.repeat_interleave(rows_of_ways, degrees)
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


def _require_fit(model: SampledGNN, loader: SampledLoader) -> None:
    """Rejects a model that does not fit the loader's batches."""
    if loader.task != "node":
        raise ValueError(f"the loader is of task={loader.task!r}: nodes need task='node'")
    if not isinstance(model, SampledGNN):
        return
    if len(loader.fanouts) != len(model.layers):
        raise ValueError(
            f"fanouts={loader.fanouts} for a model of {how_many(len(model.layers), 'layer')}: give "
            "one per layer"
        )
    features = loader.graph.manifest.features
    if features is not None and features[1] != model.in_channels:
        raise ValueError(
            f"the model takes {model.in_channels} features, the graph has {features[1]}: make the "
            f"model with in_channels={features[1]}"
        )
    if loader.classes > model.out_channels:
        raise ValueError(
            f"labels go up to class {loader.classes - 1}, the model gives {model.out_channels}: "
            f"make it with out_channels={loader.classes} at least"
        )


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, ignore_index=-1)


def _right(out: Tensor, y: Tensor) -> Tensor:
    """Returns ``[S]``: whether the largest output is the class; False for rows not finite."""
    return (out.argmax(1) == y) & out.isfinite().all(1)
