"""Builds the parts of a run from its settings: data, task, model, optimizer, plan and runner.

They are built once, in an order that determines what a run computes: the seed is set before the
model is built, and on ranks other than 0 again afterwards. A model that does not take the data is
built before the data is read. The invariant: the same settings and the same data make the same
parts, whether a run starts or is resumed.
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
from staticgraph.training.config import TrainConfig
from staticgraph.training.data import check_judged, opened, source_of
from staticgraph.training.device import device_of
from staticgraph.training.subject import attends, mode_of, model_of
from staticgraph.training.task_loss import TaskLoss, named_loss
from staticgraph.training.tasks import Task, task_of

# Between the seeds of ranks, so that they do not meet the seeds of runs, which count from 0.
APART = 1_000_003


class RunParts:
    """The parts of a run.

    Args:
        config: the settings.
        folder: the folder of the run, for messages.
        ranks: the processes that train together; None if this one trains alone.
        progress: whether to report progress.
        state: the contents of the checkpoint to resume from; None for a new run.

    Attributes:
        config, ranks: as given.
        device: the device of this process.
        kernels: whether compiled steps are rewritten to kernels, which read row pointers.
        store: the data, on the host.
        data: the digest of the data.
        source: the source of batches: the store, or its copy on the device.
        task: what the model learns to predict.
        loss: the loss that the settings name, in place of the task's; None if they name none.
        model, optimizer, plan, runner: the parts that train.

    Raises:
        ValueError: the data is not the data that the run was started with, or cannot be validated
            as required.
        DatasetUnavailable: the data cannot be obtained.
        BadGraph: the data has no target that defines a task.
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
        self.kernels: bool = config.kernels == "on"
        # Check these before half a minute of compiling and reading.
        resolve(config.compile_mode, self.device.type, config.allow_cpu)
        datasets.check(config.data, target=config.target)
        self.loss: Loss | None = None if config.loss is None else named_loss(config.loss)
        early = self._model_without_data()
        if progress:
            say(f"opening {config.data} and planning its batches")
        with kept_random_states():  # leave the random states as after building the model
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
        """Whether batches are built on the host, where workers may help."""
        return self.source is self.store

    def loader(self, split: str, workers: int) -> StaticLoader:
        """A loader of a split; ``train`` is shuffled, with exact batch sizes."""
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
        """The model if it is built without the data, so that its errors are raised before the data
        is read; else None."""
        torch.manual_seed(self.config.seed)
        model = built_without_data(self.config.model)
        if model is not None:
            require_trainable(model, self.config.model)
        return model

    def _prepared(self, model: torch.nn.Module | None) -> torch.nn.Module:
        """The model of the settings, with the same initial weights on every rank, converted.

        Args:
            model: the model if it is built already; None if it takes the data.
        """
        config, ranks = self.config, self.ranks
        if model is None:
            torch.manual_seed(config.seed)
            model = model_of(config, self.store, self.task.num_outputs)
            require_trainable(model, config.model)
        model = model.to(self.device)
        if ranks is not None:
            ranks.check_alike({"the data": self.data})
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
            if not ranks.first:  # or dropout would be the same on every rank
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
