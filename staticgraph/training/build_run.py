"""Builds the parts of a run from its settings: data, task, model, optimizer, plan and runner.

They are built once, in an order that determines what a run computes: the seed is set before the
model is built, and on ranks other than 0 again afterwards. A model that does not take the data is
built before the data is read. The invariant: the same settings and the same data make the same
parts, whether a run starts or is resumed.
"""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from staticgraph import models
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import BadGraph, CheckpointCorrupt
from staticgraph.files.checksum import crc32_of_array
from staticgraph.models.named import built, built_without_data, is_spec, require_trainable
from staticgraph.nn import convert
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.resident_bytes import distinct_bytes, state_bytes
from staticgraph.recording.recording_keys import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.runner.ways import WAYS, Auto
from staticgraph.steps.compilation.modes import FUSED, resolve
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore, fits
from staticgraph.store.random_states import kept_random_states
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.progress import waiting
from staticgraph.training.config import SIZES, TrainConfig
from staticgraph.training.job import ALONE, device_of, first_alone
from staticgraph.training.options import ModelOptions
from staticgraph.training.tasks import Task, named_loss, task_of


def digest_of(store: GraphColumns) -> str:
    """Returns sixteen hexadecimal digits that change with any feature, label, edge or split.

    The store's name and location and the objects on the host do not affect them. Reads every other
    array once.
    """
    store.verify()
    schema = replace(store.schema, molecules=False)  # not a property of the data
    hashed = hashlib.sha256(json.dumps(schema.to_dict()).encode())
    for name, array in sorted(store.arrays().items()):
        if name.startswith("object"):
            continue
        entry = (name, array.dtype.str, array.shape, crc32_of_array(array))
        hashed.update(repr(entry).encode())
    return hashed.hexdigest()[:16]


# The share of a GPU's free memory that a data set may take with store="auto": the steps, whose need
# is not known before they are compiled, keep the larger part. molhiv takes some 25 MB, so the limit
# rarely matters.
SHARE_FOR_DATA = 0.25


def source_of(
    place: str, store: GraphStore, device: torch.device, pointers: bool
) -> GraphStore | DeviceStore:
    """The source of batches: the store, or its copy on the device.

    Args:
        place: ``host``, ``device``, or ``auto``: the device if that is a GPU with enough free
            memory.
        store: the data.
        device: the device of the run.
        pointers: whether batches need row pointers.
    """
    if place == "auto" and device.type == "cuda":
        place = "device" if fits(store, device, SHARE_FOR_DATA, pointers) else "host"
    return store.to(device, pointers=pointers) if place == "device" else store


def adam(model: Module, lr: float, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer of a run: torch's fused Adam, which can be recorded on CUDA."""
    on_cuda = device.type == "cuda"
    return torch.optim.Adam(model.parameters(), lr=lr, fused=True, capturable=on_cuda)


def check_judged(config: TrainConfig, store: GraphStore) -> None:
    """Checks that there are graphs to validate if a setting depends on the validation loss.

    Raises:
        ValueError: there are none.
    """
    setting = "early_stop" if config.early_stop is not None else "schedule='plateau'"
    depends = config.early_stop is not None or config.schedule == "plateau"
    if depends and not len(store.splits.get("val", ())):
        raise ValueError(
            f"{setting} depends on the validation loss, and {store.name} has no graphs to "
            "validate: leave it out, or give the data a split 'val'"
        )


def model_of(config: ModelOptions, store: GraphStore, num_outputs: int) -> Module:
    """Builds the model of a run: one of the zoo, with its sizes, or the result of ``module:build``.

    Raises:
        ValueError: the name is unknown, the sizes do not fit together, or a model of the zoo cannot
            take the graphs.
    """
    if is_spec(config.model):
        return built(config.model, store)
    sizes = {name: getattr(config, name) for name in SIZES}
    return models.build(config.model, store, num_outputs=num_outputs, **sizes)


def prepare_model(options: ModelOptions, seed: int) -> Callable[[GraphStore, int], Module]:
    """Returns a function that gives the model for a store and a number of outputs, with the seed's
    weights. One that takes no data is built now, so that what is wrong with it shows before data is
    read.

    Raises:
        ValueError: also by the function: as for :func:`model_of`, or the model has no trainable
            parameters.
    """
    torch.manual_seed(seed)
    early = built_without_data(options.model)
    if early is not None:
        require_trainable(early, options.model)

    def build(store: GraphStore, num_outputs: int) -> Module:
        """Returns the model that was built already, or builds it from the data."""
        if early is not None:
            return early
        torch.manual_seed(seed)
        model = model_of(options, store, num_outputs)
        require_trainable(model, options.model)
        return model

    return build


def open_step(options: ModelOptions, seed: int = 0) -> tuple[GraphStore, Loss, Module]:
    """Opens the data that the options name, and builds its loss and its model.

    Raises:
        BadGraph: no loss was given, and the data has no target that defines a task.
        ValueError: a model of the zoo cannot take the graphs, or the model or the loss is invalid.
    """
    build = prepare_model(options, seed)
    loss = named_loss(options.loss) if options.loss else None
    store = options.open(seed)
    outputs = 1
    if loss is None:
        try:
            loss = task_of(store, options.task)
        except BadGraph as error:
            raise BadGraph(
                f"{error}; or give --loss MODULE:NAME, which is loss(out, batch), one value per row"
            ) from None
        outputs = loss.num_outputs
    return store, loss, build(store, outputs)


def load_weights(model: Module, weights: Mapping[str, Tensor], name: str, folder: Path) -> None:
    """Loads the weights of a run into a model.

    Raises:
        CheckpointCorrupt: the weights are those of another model; the code of a ``module:build``
            model may have changed since.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointCorrupt(
            f"{folder} holds the weights of another model than {name} builds now "
            f"({str(error).splitlines()[-1].strip()}): put its code back, or train again"
        ) from error


def mode_of(config: TrainConfig) -> str | Auto:
    """The mode of a run; with ``kernels="off"``, ``auto`` does not consider the fused mode."""
    if config.compile_mode == "auto" and config.kernels == "off":
        return Auto(ways=tuple(way for way in WAYS if way != FUSED))
    return config.compile_mode


# Between the seeds of ranks, so that they do not meet the seeds of runs, which count from 0.
APART = 1_000_003


@dataclass(eq=False)
class RunParts:
    """The parts of a run.

    Attributes:
        config: the settings.
        folder: the folder of the run.
        progress: whether to report progress, with a bar; rank 0 alone does.
        state: the contents of the checkpoint to resume from; None for a new run.
        ranks: the processes that train together.
        device: the device of this process.
        kernels: whether compiled steps are rewritten to kernels, which read row pointers.
        store: the data, on the host.
        data: the digest of the data.
        source: the source of batches: the store, or its copy on the device.
        task: what the model learns to predict.
        loss: the loss that the settings name, in place of the task's; None if they name none.
        model, optimizer, plan, runner: the parts that train.
        workers: the threads that fill batches; None until their number is determined.

    Raises:
        ValueError: the data is not the data that the run was started with, or cannot be validated
            as required.
        DatasetUnavailable: the data cannot be obtained.
        BadGraph: the data has no target that defines a task.
    """

    config: TrainConfig
    folder: Path
    progress: bool = True
    state: Mapping[str, Any] | None = None
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        config, ranks, state = self.config, self.ranks, self.state
        self.progress = self.progress and ranks.first
        self.device: torch.device = device_of(config.device, ranks)
        self.kernels: bool = config.kernels == "on"
        # Before half a minute of compiling and reading.
        resolve(config.compile_mode, self.device.type, config.allow_cpu)
        self.loss: Loss | None = None if config.loss is None else named_loss(config.loss)
        build = prepare_model(config, config.seed)
        open_data = partial(config.open, config.seed, self.progress)
        # Leaves the random states as they were after building the model.
        with kept_random_states():  # rank 0 downloads files, which the others then read
            self.store: GraphStore = first_alone(ranks, open_data) or open_data()
        self.data: str = digest_of(self.store)
        if state is not None and state["data"] != self.data:
            raise ValueError(
                f"the run in {self.folder} was begun with other data: {config.data} has other "
                f"features, labels, edges or splits now (digest {self.data}, was "
                f"{state['data']}); put the data back, or begin another run"
            )
        self.task: Task = task_of(self.store, config.task)
        self.model: Module = self._prepared(build(self.store, self.task.num_outputs))
        self.optimizer: torch.optim.Optimizer = adam(self.model, config.lr, self.device)
        self.source: GraphStore | DeviceStore = source_of(
            config.store, self.store, self.device, self.kernels
        )
        choosing = self.progress and state is None
        with waiting("choosing the shapes of batches") if choosing else nullcontext():
            self.plan: BucketPlan = (
                plan_buckets(self.store, config.batch_size, indices=self.store.splits["train"])
                if state is None
                else BucketPlan.from_dict(state["plan"])
            )
        subject = Subject(
            self.model,
            loss=self.task if self.loss is None else self.loss,
            optimizer=self.optimizer,
            autocast=None if config.autocast is None else getattr(torch, config.autocast),
            clip_norm=config.clip_norm,
            accumulate=config.accumulate,
        )
        self.runner: StaticGraphRunner = StaticGraphRunner(
            subject, self.plan, mode_of(config), recording=Recording(allow_cpu=config.allow_cpu)
        )
        check_judged(config, self.store)
        # None until the first steps were timed.
        self.workers: int | None = config.workers if isinstance(config.workers, int) else 0
        if config.workers == "auto" and self.source is self.store:
            self.workers = None

    @property
    def place(self) -> str:
        """A description of where the graphs are."""
        if isinstance(self.source, DeviceStore):
            return f"on the device ({human_bytes(self.source.nbytes)})"
        return "on the host"

    def memory(self) -> dict[str, int | None]:
        """Bytes of parameters, optimizer state and graphs, the peak host memory of this process,
        and the peak that torch reserved on the device; None where unknown."""
        on_cuda = self.device.type == "cuda"
        return {
            "parameters_bytes": distinct_bytes(self.model.parameters()),
            "optimizer_bytes": state_bytes(self.optimizer),
            "graphs_bytes": int(self.source.nbytes),
            "host_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "device_peak_bytes": torch.cuda.max_memory_reserved(self.device) if on_cuda else None,
        }

    def load(self, split: str) -> StaticLoader:
        """A loader of a split; ``train`` is shuffled, with exact batch sizes."""
        training = split == "train"
        return self.runner.loader(
            self.source,
            indices=self.store.splits[split],
            exact=training,
            shuffle=training,
            seed=self.config.seed,
            num_workers=self.workers or 0,
        )

    def _prepared(self, model: Module) -> Module:
        """The model on the device, with the same initial weights on every rank, converted."""
        model, ranks = model.to(self.device), self.ranks
        ranks.check_alike({"the data": self.data})
        if ranks.world_size > 1:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if not ranks.first:  # or dropout would be the same on every rank
            torch.manual_seed(self.config.seed + APART * ranks.rank)
        convert(model, kernels=self.kernels)
        return model
