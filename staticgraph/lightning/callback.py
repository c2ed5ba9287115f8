"""The callback that runs the forward calls of a LightningModule with fixed shapes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from staticgraph.batches.batch.real_batch import RealBatch
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.padding.padder import Padder
from staticgraph.batches.padding.read_batch import is_pyg_batch
from staticgraph.checking.comparison import Comparer, RunOptions
from staticgraph.checking.equal_draws import EqualDraws
from staticgraph.checking.outcome import Outcome
from staticgraph.checking.padding_check import PaddingCheck
from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.errors import StaticGraphError
from staticgraph.lightning.data_module import StaticDataModule
from staticgraph.lightning.static_call import StaticCalls
from staticgraph.nn.convert import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.recording.recording_keys import Recording
from staticgraph.steps.computation.model_setup import Subject

_REMEDIES = (
    "In a LightningModule mode=, recording= and check_padding= are the callback's, "
    "StaticGraphs(mode='eager'); there is no warmup(), and no option of Subject, such as "
    "differentiable=: change the module's forward, or the fields of the store"
)


class StaticGraphs(Callback):
    """Runs the forward calls of a LightningModule in the buckets of a plan.

    Give it to a ``Trainer`` together with a :class:`StaticDataModule`; nothing else changes.
    ``training_step``, ``validation_step`` and the others get a batch without padding, and call
    ``self(batch)``, ``self(batch.x, batch.edge_index, ...)`` or a submodule, ``self.encoder(...)``,
    as with PyG's loaders; those calls run with fixed shapes, except those with a tensor that the
    step computed. Loss, metrics and ``self.log`` see only real rows. Optimizers, accumulation,
    clipping, precision, checkpoints and strategies are Lightning's.

    Args:
        plan: the buckets; by default the data module's.
        mode: ``auto``, which is eager on the CPU and compiled elsewhere, or a mode of
            :class:`staticgraph.StaticGraphRunner`. With ``cuda-graph``, the backward of a call must
            run before the module is called again.
        recording: how ``cuda-graph`` records.
        check_padding: compare the first ``training_step``, and some later ones, with plain PyG; see
            :mod:`staticgraph.checking.padding_check`. Several processes, and manual optimization,
            do not.
    """

    def __init__(
        self,
        plan: BucketPlan | None = None,
        mode: str = "auto",
        recording: Recording | None = None,
        check_padding: bool = True,
    ) -> None:
        self._check_padding = check_padding
        self._check: PaddingCheck | None = None
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
        if not isinstance(data, StaticDataModule):
            self._take_own_batches(pl_module, plan)
        modules, checks = list(_called(pl_module)), self._check_padding
        self._calls = StaticCalls(modules, plan, mode, self._recording, checks)
        if checks and pl_module.automatic_optimization and trainer.world_size == 1:
            self._check = PaddingCheck(StepComparer(pl_module, plan))

    def _take_own_batches(self, pl_module: LightningModule, plan: BucketPlan) -> None:
        """Pads the batches of the user's own loader, and gives steps their real rows."""
        transfer, padder = pl_module.on_after_batch_transfer, Padder(plan)

        def transferred(batch: Any, dataloader_idx: int) -> Any:
            """The real rows of a static batch, or of one of PyG's, padded."""
            batch = transfer(batch, dataloader_idx)
            if is_pyg_batch(batch):
                batch = padder.pad(batch)
            return RealBatch(batch) if isinstance(batch, StaticBatch) else batch

        pl_module.on_after_batch_transfer = transferred

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Checks whether padding reaches the loss of a training step.

        Raises:
            PaddingLeaks: it does.
        """
        check, calls = self._check, self._calls
        if check is None or calls is None or not isinstance(batch, RealBatch):
            return
        if check.wanted("step", batch.static):
            with calls.off(), trainer.precision_plugin.train_step_context():
                check.check_batch(batch.static, "step")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restores the original forwards, since Lightning does not tear down then; says which
        remedies a LightningModule has."""
        if isinstance(exception, StaticGraphError) or hasattr(exception, "__notes__"):
            exception.add_note(_REMEDIES)
        self.teardown(trainer, pl_module, "")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restores the original forwards."""
        if self._calls is not None:
            self._calls.close()
            self._calls = self._check = None
            vars(pl_module).pop("on_after_batch_transfer", None)


class StepComparer(Comparer):
    """Runs the training step of a LightningModule, in eager, with fixed shapes and without.

    Nothing is logged. What lists, dicts and tensors in attributes of the module hold, as metrics
    and collected outputs do, is restored after each run.

    Args:
        module: with the forwards of its class.
        plan: the buckets.
    """

    def __init__(self, module: LightningModule, plan: BucketPlan) -> None:
        step: Any = type(module).training_step
        super().__init__(Subject(module, forward=step))
        self._module, self._ran = module, False
        self._calls = StaticCalls(list(_called(module)), plan, "eager", check_padding=False)
        self._calls.remove()

    @property
    def trains(self) -> bool:
        """Always: the step is a loss."""
        return True

    def padded(self, batch: StaticBatch, options: RunOptions) -> Outcome:
        """Runs the step over real rows, and the modules that it calls over padding."""
        if options.jitter is not None:
            batch = options.jitter.set_noise(batch.replace())
        self._calls.install()
        try:
            if not self._ran:  # a first call finds which results are rows, and draws for it
                self._step(RealBatch(batch), options)
                self._ran = True
            return self._step(RealBatch(batch), options)
        finally:
            self._calls.remove()

    def plain(self, batch: StaticBatch, data: PlainBatch, options: RunOptions) -> Outcome:
        """Runs the step over PyG's own batch."""
        copy = data.clone()
        return self._step(
            copy if options.jitter is None else options.jitter.set_noise(copy), options
        )

    def _step(self, data: Any, options: RunOptions) -> Outcome:
        module = self._module
        silent: dict[str, Any] = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
        held = [
            (value, value.clone() if isinstance(value, Tensor) else copy(value))
            for part in module.modules()
            for name, value in vars(part).items()
            if not name.startswith("_") and type(value) in (list, dict, set, Tensor)
        ]
        with (
            warnings.catch_warnings(action="ignore"),  # the step itself says them
            self._run(options),
            EqualDraws(options.constant) as random,
        ):
            vars(module).update(silent)
            try:
                result = module.training_step(data, 0)
                loss = result["loss"] if isinstance(result, Mapping) else result
                if loss is not None and loss.requires_grad:
                    loss.backward()
                return Outcome.of(module, None, loss, None, random.draws)
            finally:
                for name in silent:
                    vars(module).pop(name)
                for value, before in held:
                    _put_back(value, before)


def _put_back(value: Any, before: Any) -> None:
    if isinstance(value, Tensor):
        value.data.copy_(before)
    else:
        value.clear()
        value.extend(before) if isinstance(value, list) else value.update(before)


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
