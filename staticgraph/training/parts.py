"""What a run is made of: data, task, model, optimizer, plan and runner, from its settings.

They are made once, in an order that decides what a run computes: the seed is set before the model
is built, and on the other ranks once more behind it. A model that does not take the data is built
before the data is read. The invariant: the same settings and the same data make the same parts,
whether a run begins or goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from staticgraph import datasets
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.distributed.ranks import Ranks
from staticgraph.models.named import built_without_data, require_trainable
from staticgraph.nn import convert
from staticgraph.plans.choose import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.compilation.modes import resolve
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.store.digest import digest_of
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.store.random_states import kept_random_states
from staticgraph.text.progress import say
from staticgraph.training.compile_ahead import compile_ahead
from staticgraph.training.config import TrainConfig, takes_kernels
from staticgraph.training.data import check_judged, opened, source_of
from staticgraph.training.device import device_of
from staticgraph.training.job import first_alone
from staticgraph.training.loops import training_loops
from staticgraph.training.subject import attends, mode_of, model_of
from staticgraph.training.task_loss import TaskLoss, named_loss
from staticgraph.training.tasks import Task, task_of

# Between the seeds of ranks, so that seeds of runs, which people count from 0, do not meet them.
APART = 1_000_003


class RunParts:
    """The parts of a run, in the order that they are made in.

    Args:
        config: the settings.
        folder: of the run, for messages.
        ranks: the processes that train together; None where this one is alone.
        progress: whether to say what is done.
        state: of the checkpoint that the run goes on from; None where it begins.

    Attributes:
        config, ranks: as given.
        device: what it trains on.
        kernels: whether fused kernels are used, and so whether batches have row pointers.
        store: the data, on the host; data: its digest.
        source: where batches are made of: the store, or the same on the device.
        task: what is learned of a graph.
        loss: what the settings name, in place of the task's; None where they name none.
        model, optimizer, plan, runner: what trains.

    Raises:
        ValueError: the data is not what the run was begun with, or cannot be judged as asked.
        DatasetUnavailable: the data cannot be had.
        BadGraph: the data has no target that a task can be made of.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        ranks: Ranks | None,
        progress: bool,
        state: Mapping[str, Any] | None,
    ) -> None:
        self.config: TrainConfig = config
        self.ranks: Ranks | None = ranks
        self.device: torch.device = device_of(config.device, ranks)
        self.kernels: bool = takes_kernels(config.kernels, config.model, self.device.type)
        # Before half a minute of compiling and reading.
        resolve(config.compile_mode, self.device.type, config.allow_cpu)
        datasets.check(config.data, target=config.target)
        self.loss: Loss | None = None if config.loss is None else named_loss(config.loss)
        early = self._model_without_data()
        if self.kernels and self.device.type == "cpu":
            loops = training_loops(config.model)
            first_alone(ranks, lambda: compile_ahead(loops, show=progress))
        if progress:
            say(f"opening {config.data} and planning its batches")
        with kept_random_states():  # which building the model left
            self.store: GraphStore = opened(config, ranks, progress)
        self.data: str = digest_of(self.store)
        if state is not None:
            self._check_same_data(folder, state["data"])
        self.task: Task = task_of(self.store, config.task)
        self.model: torch.nn.Module = self._prepared(early)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.model.parameters(), lr=config.lr, fused=True, capturable=self.device.type == "cuda"
        )
        self.source: GraphStore | DeviceStore = source_of(
            config, self.store, self.device, self.kernels
        )
        self.plan: BucketPlan = (
            self._chosen_plan() if state is None else BucketPlan.from_dict(state["plan"])
        )
        self.runner: StaticGraphRunner = StaticGraphRunner(
            self._subject(),
            self.plan,
            mode_of(config),
            recording=Recording(allow_cpu=config.allow_cpu),
        )
        check_judged(config, self.store)

    @property
    def on_host(self) -> bool:
        """Whether batches are made on the host, where workers may help."""
        return self.source is self.store

    def loader(self, split: str, workers: int) -> StaticLoader:
        """The batches of a split: those of ``train`` shuffled and of an exact size."""
        return StaticLoader(
            self.source,
            self.plan,
            indices=self.store.splits[split],
            exact=split == "train",
            shuffle=split == "train",
            seed=self.config.seed,
            device=self.device,
            num_workers=workers,
            pointers=self.kernels,
            rank=0 if self.ranks is None else self.ranks.rank,
            world_size=1 if self.ranks is None else self.ranks.world_size,
        )

    def _check_same_data(self, folder: Path, begun_with: str) -> None:
        if begun_with != self.data:
            raise ValueError(
                f"the run in {folder} was begun with other data: {self.config.data} has other "
                f"features, labels, edges or splits now (digest {self.data}, was {begun_with}); "
                "put the data back, or begin another run"
            )

    def _model_without_data(self) -> torch.nn.Module | None:
        """The model, where it is built from nothing: what is wrong with it is then said before the
        data is read."""
        torch.manual_seed(self.config.seed)
        model = built_without_data(self.config.model)
        if model is not None:
            require_trainable(model, self.config.model)
        return model

    def _prepared(self, model: torch.nn.Module | None) -> torch.nn.Module:
        """The model of the settings' name, of the seed's weights on every rank, made static.

        Args:
            model: as it was built already; None where it takes the data.
        """
        config, ranks = self.config, self.ranks
        if model is None:
            torch.manual_seed(config.seed)
            model = model_of(config, self.store, self.task.num_outputs)
            require_trainable(model, config.model)
        model = model.to(self.device)
        if ranks is not None:
            ranks.check_alike(**{"the data": self.data})
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            if not ranks.first:  # or every rank would drop the same places
                torch.manual_seed(config.seed + APART * ranks.rank)
        convert(model, kernels=self.kernels)
        return model

    def _chosen_plan(self) -> BucketPlan:
        return plan_buckets(
            self.store,
            self.config.batch_size,
            indices=self.store.splits["train"],
            attention="auto" if attends(self.model) else None,
        )

    def _subject(self) -> Subject:
        config = self.config
        return Subject(
            self.model,
            loss=TaskLoss(self.task) if self.loss is None else self.loss,
            optimizer=self.optimizer,
            autocast=None if config.autocast is None else getattr(torch, config.autocast),
            clip_norm=config.clip_norm,
            accumulate=config.accumulate,
        )
