"""What both sides share: the data, the model before its first step, the loss, the order of batches.

Whatever is compared starts from the same weights and meets the same graphs in the same batches in
the same order, with the same optimizer; only who batches them and who runs the step differs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.plan import BucketPlan
from staticgraph.steps.computation.model_arguments import Forward
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.store.graph_store import GraphStore


@dataclass(frozen=True, slots=True, eq=False)
class VersusSetting:
    """What is trained.

    Attributes:
        model: on the CPU, before its first step; never run itself.
        store: the graphs; plan: their fixed shapes.
        loss: one value per row, as a runner takes it.
        forward: how the model is called.
        train_ids: the graphs that may be drawn.
        batch_size: graphs of a batch.
        device: where both sides run.
        lr: of Adam; seed: of the order and of random numbers.
    """

    model: torch.nn.Module
    store: GraphStore
    plan: BucketPlan
    loss: Loss
    forward: Forward
    train_ids: np.ndarray
    batch_size: int
    device: torch.device
    lr: float = 1e-3
    seed: int = 0

    def fresh_model(self) -> torch.nn.Module:
        """A copy of the model, in training mode on the device."""
        return copy.deepcopy(self.model).to(self.device).train()

    def adam(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The same optimizer for all: the fastest that torch has."""
        on_cuda = self.device.type == "cuda"
        return torch.optim.Adam(model.parameters(), lr=self.lr, fused=True, capturable=on_cuda)

    @property
    def most_batches(self) -> int:
        """Batches that the graphs to draw from make."""
        return max(1, len(self.train_ids) // self.batch_size)

    def course(self, batches: int) -> Course:
        """The first so many batches of the first epoch, as a training has them."""
        batcher = Batcher(
            self.store.sizes,
            self.plan,
            indices=self.train_ids,
            exact=True,
            shuffle=True,
            seed=self.seed,
        )
        order = [batch.ids.tolist() for batch in islice(batcher.epoch(0), batches)]
        return Course(order, {i: self.store[i] for ids in order for i in ids})


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """What a turn trains over: the ids of each batch, and the graphs as PyG has them."""

    order: list[list[int]]
    graphs: dict[int, Any]

    @property
    def num_graphs(self) -> int:
        """Of all batches together."""
        return sum(map(len, self.order))

    @property
    def data(self) -> list[Data | None]:
        """The graphs at their places in the store, for a sampler of ids."""
        return [self.graphs.get(i) for i in range(max(self.graphs) + 1)]
