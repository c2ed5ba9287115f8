"""Node classification on sampled static batches, by a :class:`staticgraph.StaticGraphRunner`.

A step consists of the forward pass, the mean loss over the seeds with a label, the backward pass
and the optimizer. Evaluation uses full neighbourhoods, with the whole graph in memory.
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
from torch_geometric.nn import GCNConv

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import BadGraph, Diverged
from staticgraph.outofcore.disk.inputs import class_labels
from staticgraph.outofcore.sampling.sampled_loader import SampledLoader
from staticgraph.outofcore.training.gnn import reads_gcn_weights, run_whole
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.positions import positions_in
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


class SeedLoss(nn.Module):
    """Cross-entropy of the seeds with a label, which are also counted if classified correctly."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self._classes = classes
        self.correct: Tensor
        self.register_buffer("correct", torch.zeros((), dtype=torch.int64))

    def forward(self, out: Tensor, batch: StaticBatch) -> tuple[Tensor, Tensor]:
        """Returns values and weights, ``[N]``.

        Raises:
            ValueError: if a label is none of the model's classes.
        """
        if out.size(1) < self._classes:
            raise ValueError(
                f"labels go up to class {self._classes - 1}, the model gives {out.size(1)}: make "
                f"it with out_channels={self._classes} at least"
            )
        y, labelled = batch.y, (batch.y >= 0) & batch.node_mask
        with torch.no_grad():
            self.correct.add_((correct_rows(out, y) & labelled).sum())
        values = nn.functional.cross_entropy(out, y, ignore_index=-1, reduction="none")
        return values, labelled


class NodeTrainer:
    """Trains a model on the seeds of a loader.

    Args:
        model: any PyG model from ``x`` and ``edge_index`` to a row of classes per node.
        loader: a loader of nodes, with labels.
        rate: the learning rate of Adam.
        decay: the L2 penalty, as Adam's ``weight_decay``.
        mode: as for :class:`staticgraph.StaticGraphRunner`.
        forward: ``forward(model, batch)``, as for the runner.
        **options: others of the runner.

    Attributes:
        runner: the runner of the loader's buckets.

    Raises:
        ValueError: if the loader is not one of nodes, lacks features or labels, or has not the edge
            weights that the model's GCN layers need.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: SampledLoader,
        *,
        rate: float = 0.01,
        decay: float = 5e-4,
        mode: str = "auto",
        forward: Forward | None = None,
        **options: Any,
    ) -> None:
        _require_fit(model, loader)
        self.model: torch.nn.Module = model
        self.loader: SampledLoader = loader
        self._forward = forward
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            model.parameters(), rate, weight_decay=decay
        )
        self._loss = SeedLoss(loader.classes).to(next(model.parameters()).device)
        subject = Subject(model, self._loss, self.optimizer, forward, check_finite=0)
        self.runner: StaticGraphRunner = StaticGraphRunner(
            subject, loader.plan, mode, distributed="off", **options
        )

    def train_epoch(self) -> NodeEpoch:
        """Trains one pass over the loader's seeds; a batch without labels is skipped.

        Raises:
            Diverged: if the loss of the epoch is not finite.
            ValueError: if no seed has a label.
        """
        started, waited = time.perf_counter(), self.loader.waited_s
        schedule = self.loader.schedule(self.loader.epoch)
        # Kept on the device: reading a number at each step would synchronise with every batch.
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.runner.device)
        self._loss.correct.zero_()
        seeds = batches = labelled = 0
        for batch in self.loader:
            assert batch.graph is not None
            seeds, batches = seeds + len(batch.seeds), batches + 1
            # Counted on the host; the mean over no labels and its gradients would be NaN.
            n = int((batch.graph.y[: len(batch.seeds)] >= 0).sum())
            if n:
                loss_sum += self.runner.step(batch.graph.to(self.runner.device)) * n
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
            accuracy=int(self._loss.correct) / labelled,
            seeds=seeds,
            batches=batches,
            partitions_read=schedule.reads,
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
        numbers = positions_in(nodes, graph.num_nodes, "nodes", "node", BadGraph)
        classes = class_labels(labels, graph.num_nodes)
        if not (known := classes[numbers] >= 0).any():
            raise ValueError(
                f"of {how_many(len(numbers), 'node')} to evaluate on none has a label: give others"
            )
        numbers = numbers[known]
        assert graph.manifest.features is not None
        dtype, width = graph.manifest.features
        blocks = np.empty((graph.num_partitions, graph.partition_size, width), dtype)
        for partition, block in enumerate(blocks):
            graph.read_features(partition, block)
        x = blocks.reshape(-1, width)[: graph.num_nodes].astype(np.float32, copy=False)
        edges, direction = graph.read_edges(), self.loader.direction
        out = run_whole(self.model, edges, x, direction, self._forward)
        out = out[torch.from_numpy(graph.numbers[numbers])]
        return float(correct_rows(out, torch.from_numpy(classes[numbers])).float().mean())


def _require_fit(model: nn.Module, loader: SampledLoader) -> None:
    """Rejects a loader whose batches lack what training, or the model, reads."""
    if loader.task != "node":
        raise ValueError(f"the loader is of task={loader.task!r}: nodes need task='node'")
    if not loader.states.width:
        raise ValueError("the batches have no features: pass features= to outofcore.partition")
    if not loader.classes:
        raise ValueError("the loader has no labels: pass labels= to SampledLoader")
    gcn = any(isinstance(each, GCNConv) for each in model.modules())
    if gcn and reads_gcn_weights(model) != loader.gcn_norm:
        raise ValueError(
            f"the model's GCN layers normalise: {not reads_gcn_weights(model)}, and the loader has "
            f"gcn_norm={loader.gcn_norm}: give GCNConv(normalize=False) and SampledLoader(gcn_norm="
            "True), whose weights count degrees in the whole graph, or neither"
        )


def correct_rows(out: Tensor, y: Tensor) -> Tensor:
    """Returns ``[n]``: whether the largest output is the class; False for rows not finite."""
    return (out.argmax(1) == y) & out.isfinite().all(1)
