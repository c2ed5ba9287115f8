"""A training run, from its first step or a checkpoint to its report.

This is the training loop of the README, with a store, plan, loader and runner, plus progress,
checkpoints, validation and Ctrl-C.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import Diverged, NonFiniteLoss
from staticgraph.nn import convert
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.plans.worker_count import WorkerCount, autosize_workers
from staticgraph.probing.fake_tensors import distinct_bytes, state_bytes
from staticgraph.recording.recording_keys import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.compilation.modes import resolve
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.store.random_states import kept_random_states
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many, some
from staticgraph.text.progress import Bar, bar, is_left_out, say, waiting
from staticgraph.training import checkpoint, plots
from staticgraph.training.build_run import (
    adam,
    digest_of,
    load_weights,
    mode_of,
    open_step,
    source_of,
)
from staticgraph.training.config import (
    CHOICES,
    CONFIG,
    PICTURE,
    REPORT,
    STEPS,
    TrainConfig,
    factor,
    stands_still,
)
from staticgraph.training.job import ALONE, Interrupt, Interrupted, device_of, first_alone
from staticgraph.training.report import (
    EpochRecord,
    History,
    StepRecord,
    TrainReport,
    full_shares,
    mean_loss,
    task_words,
    write_steps,
)
from staticgraph.training.tasks import Evaluation, Task, evaluate, task_of

# Steps that warm caches and allocators, and steps that are timed.
WARM, TIMED = 4, 16


def timed(
    batches: Iterator[StaticBatch],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[StaticBatch, None, WorkerCount | None]:
    """Yields the first batches, and returns the number of workers that suits their times.

    Args:
        batches: filled on demand, without workers.
        device: synchronized before and after the timed steps.
        clock: returns the time in seconds.

    Returns:
        The number of workers; None if there are too few batches.
    """
    filling = begun = 0.0
    for number in range(WARM + TIMED):
        if number == WARM:
            _wait(device)
            filling, begun = 0.0, clock()
        begun_s = clock()
        batch = next(batches, None)
        filling += clock() - begun_s
        if batch is None:
            return None
        yield batch
        del batch  # returns its slot to the loader
    _wait(device)
    stepping = clock() - begun - filling
    # The time to read a memory-mapped store is part of the filling.
    return autosize_workers(0.0, filling / TIMED, max(stepping / TIMED, 1e-9))


def not_finite(model: Module) -> set[str]:
    """Returns the names of the parameters and buffers with a value that is not finite."""
    values = chain(model.named_parameters(), model.named_buffers())
    return {
        name
        for name, value in values
        if value.is_floating_point() and not is_lazy(value) and not bool(value.isfinite().all())
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# Between the seeds of ranks, so that they do not meet the seeds of runs, which count from 0.
APART = 1_000_003


class Training:
    """A run in progress, used by :func:`staticgraph.training.train.train` and ``resume``.

    Args:
        config: the settings.
        folder: the folder of the run.
        progress: whether to report progress, with a bar; rank 0 alone does.
        state: the contents of the checkpoint to resume from; None for a new run.
        ranks: the processes that train together.

    Attributes:
        data: the digest of the data.
        source: the source of batches: the store, or its copy on the device.
        workers: the threads that fill batches; None until their number is determined.

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
        progress: bool = True,
        state: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config: TrainConfig = config
        self.folder: Path = folder
        self.state: Mapping[str, Any] | None = state
        self.ranks: Ranks = ranks
        self.progress: bool = progress and ranks.first
        self.device: torch.device = device_of(config.device, ranks)
        # Before half a minute of compiling and reading.
        resolve(config.compile_mode, self.device.type, config.allow_cpu)
        self.store: GraphStore
        self.store, loss, model = open_step(config, config.seed, self._open_data)
        model = model.to(self.device)
        ranks.check_alike({"the data": self.data})
        if ranks.world_size > 1:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if not ranks.first:  # or dropout would be the same on every rank
            torch.manual_seed(config.seed + APART * ranks.rank)
        kernels = config.kernels == "on"
        convert(model, kernels=kernels)
        self.model: Module = model
        self.optimizer: torch.optim.Optimizer = adam(model, config.lr, self.device)
        self.source: GraphStore | DeviceStore = source_of(
            config.store, self.store, self.device, kernels
        )
        choosing = self.progress and state is None
        with waiting("choosing the shapes of batches", choosing):
            self.plan: BucketPlan = (
                plan_buckets(self.store, config.batch_size, indices=self.store.splits["train"])
                if state is None
                else BucketPlan.from_dict(state["plan"])
            )
        subject = Subject(
            model,
            loss=loss,
            optimizer=self.optimizer,
            autocast=None if config.autocast is None else getattr(torch, config.autocast),
            clip_norm=config.clip_norm,
            accumulate=config.accumulate,
        )
        recording = Recording(allow_cpu=config.allow_cpu)
        self.runner: StaticGraphRunner = StaticGraphRunner(
            subject, self.plan, mode_of(config), recording=recording
        )
        setting = "early_stop" if config.early_stop is not None else "schedule='plateau'"
        judges = config.early_stop is not None or config.schedule == "plateau"
        if judges and not len(self.store.splits.get("val", ())):
            raise ValueError(
                f"{setting} depends on the validation loss, and {self.store.name} has no graphs to "
                "validate: leave it out, or give the data a split 'val'"
            )
        # None until the first steps were timed.
        self.workers: int | None = config.workers if isinstance(config.workers, int) else 0
        if config.workers == "auto" and self.source is self.store:
            self.workers = None
        self.loader: StaticLoader = self._load("train")
        self.history: History = History()
        self.resumed_at: int = 0 if state is None else len(state["steps"])
        self._events: Any = None
        # Graphs of the latest validation.
        self._not_finite: tuple[int, ...] = ()
        # On purpose, such as a mask or the least loss so far.
        self._infinite: set[str] = not_finite(model)

    def _open_data(self) -> GraphStore:
        """Opens the data, which must be that of the checkpoint and have a target; leaves the random
        states as they were after building a model."""
        config, state = self.config, self.state
        open_data = partial(config.open, config.seed, self.progress)
        with kept_random_states():  # rank 0 downloads files, which the others then read
            store = first_alone(self.ranks, open_data) or open_data()
        self.data: str = digest_of(store)
        if state is not None and state["data"] != self.data:
            raise ValueError(
                f"the run in {self.folder} was begun with other data: {config.data} has other "
                f"features, labels, edges or splits now (digest {self.data}, was "
                f"{state['data']}); put the data back, or begin another run"
            )
        self.task: Task = task_of(store, config.task)
        return store

    def _load(self, split: str) -> StaticLoader:
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

    def run(self) -> TrainReport:
        """Trains the remaining epochs and writes all files, also before raising a divergence."""
        # Destroying an NCCL group waits for the CUDA graphs that contain its collectives
        # (pytorch/pytorch#115388).
        with closing(self.runner):
            return self._run()

    def _run(self) -> TrainReport:
        if self.ranks.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.plan.save(self.folder / "plan.json")
            self.config.save(self.folder / CONFIG)
        self._say(self._opening())
        if self.state is not None:
            # Now, since the state of a recorded optimizer may not be replaced later.
            self._restore(self.state)
        # A resumed run keeps the modes that were chosen by time, since they round differently.
        self.runner.warmup(
            self.source,
            progress=self.progress,
            choices=self.folder / CHOICES,
            steps=len(self.loader) * (self.config.epochs - self.loader.epoch),
        )
        with self._writer() as self._events:
            try:
                with Interrupt() as interrupt:
                    while self.loader.epoch < self.config.epochs and not self._stands_still:
                        self._finish_epoch(self._train_epoch(interrupt))
            except Diverged as error:
                self._finish(error.epoch)
                raise
            return self._finish(None)

    def _writer(self) -> Any:
        """TensorBoard's writer; None on the ranks that write nothing, and without TensorBoard."""
        if not self.ranks.first or is_left_out("TensorBoard's files", "tensorboard"):
            return nullcontext()
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder), purge_step=self.resumed_at)

    def _log(self, name: str, value: float, step: int) -> None:
        if self._events is not None:
            self._events.add_scalar(name, value, step)

    # ------------------------------------------------------------------ training

    @property
    def _stands_still(self) -> bool:
        """Whether the validation loss no longer falls, so that the run stops early."""
        return stands_still(self.history.val_losses, self.config.early_stop)

    def _set_rate(self, step: int) -> None:
        """Sets the learning rate of a step, counted from 0."""
        config = self.config
        if config.schedule != "constant":
            steps = max(1, len(self.loader) * config.epochs)
            rate = config.lr * factor(config.schedule, step, steps, self.history.val_losses)
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):  # a recording reads it in place
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def _train_epoch(self, interrupt: Interrupt) -> int:
        """Trains the rest of an epoch, and returns its number."""
        epoch, history = self.loader.epoch, self.history
        # The rows of each batch, summed over all ranks.
        batcher = self.loader.batcher
        rows = iter(batcher.rows(epoch).sum(axis=1).tolist()[batcher.position :])
        # Also of the time before a resume.
        begun_s = time.perf_counter() - history.seconds
        with bar(
            total=len(self.store.splits["train"]),
            initial=sum(step.graphs for step in history.of_epoch(epoch)),
            desc=f"epoch {epoch + 1}/{self.config.epochs}",
            unit=" graphs",
            show=self.progress,
        ) as progress_bar:
            for batch in self._batches():
                graphs, nodes, edges, *_ = next(rows)
                step = StepRecord(epoch, batch.bucket, graphs, nodes, edges, math.nan)
                self._set_rate(len(history.steps))
                try:
                    loss = self.runner.step(batch)
                except NonFiniteLoss as error:
                    history.read()
                    history.steps.append(step)
                    raise self._diverged(error) from error
                history.add(step, loss)
                due = len(history.steps) % self.config.checkpoint_every == 0
                # Several ranks stop together, at a step where they exchange the request.
                asking = self.ranks is ALONE or due or history.full
                stops = asking and self.ranks.any(interrupt.requested)
                if due or stops or history.full:
                    self._read(progress_bar)
                progress_bar.update(graphs)
                if due or stops:
                    history.seconds = time.perf_counter() - begun_s
                    self._save()
                if stops:
                    raise Interrupted(
                        f"stopped after {how_many(len(history.steps), 'step')}; continue with "
                        f"staticgraph train --resume --out {self.folder}"
                    )
            self._read(progress_bar)
        history.seconds = time.perf_counter() - begun_s
        return epoch

    def _batches(self) -> Iterator[StaticBatch]:
        """The remaining batches of the epoch; the first ones without workers if their number is
        still to be determined."""
        if self.workers is None:
            epoch = self.loader.epoch
            with closing(iter(self.loader)) as first:
                choice = yield from timed(first, self.device)
            if self.loader.epoch != epoch:
                return
            if choice is not None:
                self.workers: int | None = choice.num_workers
                self._say(f"{how_many(self.workers, 'worker')}: {choice.reason}")
                state = self.loader.state_dict()
                self.loader = self._load("train")
                self.loader.load_state_dict(state)
        yield from self.loader

    def _read(self, shown: Bar) -> None:
        """Reads the losses from the device, and ends the run if one is not finite."""
        read = self.history.read()
        for number, step in enumerate(read, len(self.history.steps) - len(read)):
            self._log("loss/train", step.loss, number)
        if read:
            shown.set_postfix_str(f"loss {mean_loss(read):.4f}", refresh=False)
        try:
            self.runner.check_finite()
        except NonFiniteLoss as error:
            raise self._diverged(error) from error

    def _diverged(self, reason: object) -> Diverged:
        """The error that ends the run."""
        steps = self.history.steps
        epoch = steps[-1].epoch + 1 if steps else self.loader.epoch + 1
        return Diverged(
            f"the training diverged in epoch {epoch}: {reason}. Train again with a lower --lr; "
            f"{self.folder / REPORT} says how far it came",
            epoch,
        )

    def _finish_epoch(self, number: int) -> None:
        history, metric = self.history, self.task.metric_name
        steps, trained = history.of_epoch(number), len(history.steps)
        train_loss, graphs = mean_loss(steps), sum(step.graphs for step in steps)
        val = self._evaluate("val")
        self._not_finite = val.not_finite
        epoch = EpochRecord(number, train_loss, history.seconds, graphs, val.loss, val.metric)
        history.epochs.append(epoch)
        history.seconds = 0.0
        self._log("graphs per second", epoch.graphs_per_s, trained)
        judged = "no graphs to validate"
        if val.loss is not None and val.metric is not None:
            self._log("loss/val", val.loss, trained)
            self._log(f"{metric}/val", val.metric, trained)
            judged = f"val loss {val.loss:.4f}, val {metric} {val.metric:.4f}"
        self._say(
            f"epoch {number + 1}: loss {train_loss:.4f}, {judged}, "
            f"{epoch.graphs_per_s:,.0f} graphs/s"
        )
        self._save()

    def _evaluate(self, split: str) -> Evaluation:
        """The loss and the metric of a split; both None if it is empty."""
        if not len(self.store.splits.get(split, ())):
            return Evaluation(None, None)
        own_loss = self.config.loss is not None
        return evaluate(self.runner, self._load(split), self.task, self.ranks, own_loss)

    # ------------------------------------------------------------------ saving

    def _save(self) -> None:
        # A checkpoint that is not finite would replace the last good one.
        if not_finite(self.model) - self._infinite:
            raise self._diverged("what was trained is not finite")
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        random = {"cpu": torch.get_rng_state(), "cuda": cuda}
        randoms = self.ranks.gather_objects(random)
        if not self.ranks.first:
            return
        checkpoint.save(
            self.folder,
            **({"ranks_random": randoms} if len(randoms) > 1 else {}),
            random=random,
            config=asdict(self.config),
            data=self.data,
            plan=self.plan.to_dict(),
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            runner=self.runner.state_dict(),
            loader=self.loader.state_dict(),
            **self.history.state(),
        )

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restores the contents of a checkpoint.

        Raises:
            CheckpointCorrupt: the weights are those of another model.
        """
        load_weights(self.model, state["model"], self.config.model, self.folder)
        self.optimizer.load_state_dict(state["optimizer"])
        self.history.load(state)
        self.runner.load_state_dict(state["runner"])
        saved, now = state["loader"], self.loader.batcher.world_size
        then = saved["of"].get("world_size", 1)
        if now == then:
            self.loader.load_state_dict(saved)
            random = state.get("ranks_random", [state["random"]])[self.ranks.rank]
            torch.set_rng_state(random["cpu"])
            for cuda in random["cuda"] if self.device.type == "cuda" else ():
                torch.cuda.set_rng_state(cuda, self.device)
            return
        # The steps of another number of processes differ, so an epoch in progress is not continued.
        begun = saved["position"] > 0
        self.loader.set_epoch(saved["epoch"] + begun)
        if begun:
            self.history.seconds = 0.0
            self._say(
                f"begun on {how_many(then, 'process')}, now {now}: what is left of epoch "
                f"{saved['epoch'] + 1} is left out"
            )

    def _finish(self, diverged: int | None) -> TrainReport:
        """Tests the model, unless it diverged, and writes the files of the finished run."""
        store, history, on_cuda = self.store, self.history, self.device.type == "cuda"
        stopped = self._stands_still and len(history.epochs) < self.config.epochs
        report = TrainReport(
            folder=str(self.folder),
            config=asdict(self.config),
            data={
                "name": store.name,
                "graphs": len(store),
                "place": self._place,
                "splits": {name: len(ids) for name, ids in store.splits.items()},
            },
            task=self.task.name,
            outputs=self.task.num_outputs,
            classes=store.schema["y"].classes,
            metric=self.task.metric_name,
            parameters=sum(p.numel() for p in self.model.parameters()),
            epochs=tuple(history.epochs),
            test_metric=None if diverged else self._evaluate("test").metric,
            resumed_at=self.resumed_at,
            runner=self.runner.report(),
            files={"settings": CONFIG, "steps": STEPS, "report": REPORT, "picture": PICTURE},
            diverged=diverged,
            memory={
                "parameters_bytes": distinct_bytes(self.model.parameters()),
                "optimizer_bytes": state_bytes(self.optimizer),
                "graphs_bytes": int(self.source.nbytes),
                "host_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "device_peak_bytes": (
                    torch.cuda.max_memory_reserved(self.device) if on_cuda else None
                ),
            },
            stopped_early=len(history.epochs) if stopped else None,
            full_batches=full_shares(history.steps, self.plan.capacities),
        )
        if self.ranks.first:
            write_steps(self.folder / STEPS, history.steps)
            report.save(self.folder / REPORT)
            run = report, history.steps, self.plan.capacities
            plots.save_picture(self.folder / PICTURE, plots.draw_run, *run)
        if self._not_finite:
            graphs = some(f"graph {graph}" for graph in self._not_finite)
            self._say(
                f"the validation loss is not finite: {graphs} of {store.name} gives an output, or "
                "has a loss, that is not: look for NaN and infinities in its fields"
            )
        return report

    # ------------------------------------------------------------------ messages

    @property
    def _place(self) -> str:
        """A description of where the graphs are."""
        if isinstance(self.source, DeviceStore):
            return f"on the device ({human_bytes(self.source.nbytes)})"
        return "on the host"

    def _opening(self) -> str:
        store, task, mode = self.store, self.task, self.runner.mode
        classes = store.schema["y"].classes
        timed_first = "auto (each way to run is timed before the first step)"
        chosen = timed_first if self.runner.measures else f"{mode.name} ({mode.reason})"
        shapes = ", ".join(map(str, self.plan.capacities))
        again = f"resuming after step {self.resumed_at:,}; " if self.resumed_at else ""
        processes = self.ranks.world_size
        several = f" of {how_many(processes, 'process')}" if processes > 1 else ""
        return (
            f"{again}{len(store.splits['train']):,} of {how_many(len(store), 'graph')} "
            f"of {store.name} in {how_many(len(self.loader), 'batch')} per epoch; buckets "
            f"{shapes}; mode {chosen} on {self.device}{several}, graphs "
            f"{self._place}; "
            f"{task_words(task.name, task.num_outputs, task.metric_name, classes)}"
        )

    def _say(self, text: str) -> None:
        if self.progress and text:
            say(text)
