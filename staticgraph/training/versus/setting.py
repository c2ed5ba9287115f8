"""What all sides share: the data, the untrained model, the loss, and the order of batches.

All sides start from the same weights and train on the same graphs in the same batches and order,
with the same optimizer; only the batching and the execution of the step differ.
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
    """The setting of a comparison.

    Attributes:
        model: the untrained model, on the CPU; only copies of it are run.
        store: the graphs.
        plan: the fixed shapes.
        loss: one value per row, as a runner takes it.
        forward: how the model is called.
        train_ids: the graphs to train on.
        batch_size: graphs per batch.
        device: the device of all sides.
        lr: learning rate of Adam.
        seed: seed of the order of graphs and of random numbers.
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
        """The optimizer, the same for all sides: torch's fused Adam."""
        on_cuda = self.device.type == "cuda"
        return torch.optim.Adam(model.parameters(), lr=self.lr, fused=True, capturable=on_cuda)

    @property
    def most_batches(self) -> int:
        """The number of full batches in an epoch, at least 1."""
        return max(1, len(self.train_ids) // self.batch_size)

    def course(self, batches: int) -> Course:
        """A course of the first ``batches`` batches of the first epoch of a training."""
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
    """The batches of a turn: the ids of each batch, and the graphs as PyG objects."""

    order: list[list[int]]
    graphs: dict[int, Any]

    @property
    def num_graphs(self) -> int:
        """The number of graphs in all batches together."""
        return sum(map(len, self.order))

    @property
    def data(self) -> list[Data | None]:
        """The graphs at their positions in the store, for a sampler of ids."""
        return [self.graphs.get(i) for i in range(max(self.graphs) + 1)]
