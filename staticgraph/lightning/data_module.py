"""The Lightning data module that loads a data set in batches of fixed shape."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule

from staticgraph.batches.batch.real_batch import RealBatch
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many

# The names that a split may have.
_NAMES = {"val": ("val", "valid", "validation"), "train": ("train", "training")}


class ResumingLoader(StaticLoader):
    """A loader whose state Lightning keeps in its checkpoints, and to whose sampler it tells the
    epoch: after a finished one it does not load the state."""

    _counted: int | None = None  # what Lightning was told first

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Has this loader as its sampler, whose ``set_epoch`` Lightning calls."""
        return SimpleNamespace(sampler=self)

    def __len__(self) -> int:
        """The number of batches of the current epoch.

        Raises:
            TypeError: they are packed or split, and others in every epoch; Lightning, which asks
                once, then takes all there are.
        """
        if self.batcher.shuffle and (not self.batcher.exact or self.batcher.stats.split):
            raise TypeError("the number of batches that are packed or split differs by epoch")
        count = super().__len__()
        self._counted = self._counted or count
        return count

    def set_epoch(self, epoch: int) -> None:
        """Like :class:`StaticLoader`'s, but leaves a loaded position in this epoch.

        Raises:
            ValueError: batches are split, and none was when Lightning asked for their number.
        """
        if not (self._resumed and epoch == self.epoch):
            super().set_epoch(epoch)
        if self._counted not in (None, count := len(self.batcher)):
            raise ValueError(
                f"epoch {epoch} has {how_many(count, 'batch')}, some of them in parts, and "
                f"Lightning counted {self._counted} before: make a plan with larger buckets, or "
                "Trainer(reload_dataloaders_every_n_epochs=1)"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Like :class:`StaticLoader`'s, but moves to the next epoch after an epoch's last batch."""
        super().load_state_dict(state)
        if self.batcher.position >= len(self.batcher):
            self.set_epoch(self.epoch + 1)


class StaticDataModule(LightningDataModule):
    """Provides loaders of batches of fixed shape for the splits of a store.

    Each process of a distributed job gets its share, so
    ``Trainer(use_distributed_sampler=...)`` has no effect. Steps get a
    :class:`staticgraph.batches.batch.real_batch.RealBatch`: PyG's names, no padding.

    Args:
        store: the graphs.
        plan: the buckets; by default ``plan_buckets(store, batch_size=batch_size)``.
        batch_size: graphs per training batch and process.
        splits: ``{"train": indices, "val": ..., "test": ..., "predict": ...}``; by default the
            store's. A missing split has no loader, except that ``predict`` defaults to all graphs.
        seed: seed of the order of training batches.
        **options: options of the loaders, such as ``num_workers``; see
            :class:`staticgraph.StaticLoader`.

    Raises:
        ValueError: neither a plan nor a batch size was given.
    """

    def __init__(
        self,
        store: GraphStore,
        plan: BucketPlan | None = None,
        *,
        batch_size: int | None = None,
        splits: Mapping[str, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if plan is None and batch_size is None:
            raise ValueError("StaticDataModule needs a plan=, or a batch_size= to make one for")
        self.store = store
        self.plan: BucketPlan = plan or plan_buckets(store, batch_size=batch_size)
        self._splits = dict(store.splits if splits is None else splits)
        self._seed = seed
        self._options = options

    def split(self, name: str) -> np.ndarray | None:
        """The indices of the graphs of a split, or None if there is no such split."""
        for alias in _NAMES.get(name, (name,)):
            if alias in self._splits:
                return np.asarray(self._splits[alias])
        return None

    def loader(self, indices: Any, **options: Any) -> StaticLoader:
        """A loader for this process, on its device."""
        trainer = self.trainer
        if trainer is not None:
            options = {
                "rank": trainer.global_rank,
                "world_size": trainer.world_size,
                "device": trainer.strategy.root_device,
                **options,
            }
        return ResumingLoader(
            self.store, self.plan, indices=indices, seed=self._seed, **{**options, **self._options}
        )

    def train_dataloader(self) -> Any:
        """A loader of exact batches, in a different order every epoch."""
        loader = self._make_loader("train", shuffle=True)
        # Lightning may ask for another one in every epoch.
        if isinstance(loader, StaticLoader) and self.trainer is not None:
            loader.set_epoch(self.trainer.current_epoch)
        return loader

    def val_dataloader(self) -> Any:
        """A loader with as many graphs per batch as fit, each graph once."""
        return self._make_loader("val", exact=False)

    def test_dataloader(self) -> Any:
        """A loader with as many graphs per batch as fit, each graph once."""
        return self._make_loader("test", exact=False)

    def predict_dataloader(self) -> Any:
        """A loader of the ``predict`` split, or of the whole store if there is no such split.

        Its batches keep the order of the graphs, so the outputs can be joined as they come.
        """
        indices = self.split("predict")
        return self.loader(indices, exact=False, window=1)

    def _make_loader(self, name: str, **options: Any) -> Any:
        indices = self.split(name)
        return [] if indices is None else self.loader(indices, **options)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """A static batch as a :class:`RealBatch` for a step."""
        return RealBatch(batch) if isinstance(batch, StaticBatch) else batch
