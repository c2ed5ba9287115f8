"""The callback that runs the forward calls of a LightningModule with fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from staticgraph.lightning.data_module import StaticDataModule
from staticgraph.lightning.static_call import StaticCalls
from staticgraph.nn.convert import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording import Recording


class StaticGraphs(Callback):
    """Runs the forward calls of a LightningModule in the buckets of a plan.

    Give it to a ``Trainer`` together with a :class:`StaticDataModule`; nothing else changes.
    ``training_step``, ``validation_step`` and the others get a batch without padding, and call
    ``self(batch)``, ``self(batch.x, batch.edge_index, ...)`` or a submodule, ``self.encoder(...)``,
    as with PyG's loaders; those calls run with fixed shapes. Loss, metrics and ``self.log`` see
    only real rows. Optimizers, accumulation, clipping, precision, checkpoints and strategies are
    Lightning's.

    Args:
        plan: the buckets; by default the data module's.
        mode: ``auto``, which is eager on the CPU and compiled elsewhere, or a mode of
            :class:`staticgraph.StaticGraphRunner`. With ``cuda-graph``, the backward of a call must
            run before the module is called again.
        recording: how ``cuda-graph`` records.
    """

    def __init__(
        self,
        plan: BucketPlan | None = None,
        mode: str = "auto",
        recording: Recording | None = None,
    ) -> None:
        self._plan = plan
        self._mode = mode
        self._recording = recording
        self._calls: StaticCalls | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Replaces the forwards of the module and its submodules, in each process separately.

        Raises:
            ValueError: no plan was given, and the data module has none.
        """
        if self._calls is not None:
            return
        data = getattr(trainer, "datamodule", None)
        plan = self._plan or (data.plan if isinstance(data, StaticDataModule) else None)
        if plan is None:
            raise ValueError(
                "StaticGraphs() finds no plan: trainer.fit(module, datamodule=StaticDataModule("
                "store, batch_size=...)), or StaticGraphs(plan=...)"
            )
        device = trainer.strategy.root_device.type
        mode = self._mode
        if mode == "auto":
            mode = "eager" if device == "cpu" else "default"
        convert(pl_module)
        self._calls = StaticCalls(list(_called(pl_module)), plan, mode, self._recording)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restores the original forwards."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def _called(module: LightningModule) -> Iterator[torch.nn.Module]:
    """Yields the modules that a step may call: the module itself and its children, including those
    in module lists and dicts, but not losses and metrics, which run on real rows."""
    yield module
    parts = list(module.children())
    while parts:
        part = parts.pop()
        if isinstance(part, torch.nn.ModuleList | torch.nn.ModuleDict):
            parts += part.children()
        elif not _takes_rows(part):
            yield part


def _takes_rows(module: torch.nn.Module) -> bool:
    home = type(module).__module__
    return home == "torch.nn.modules.loss" or home.startswith("torchmetrics")
