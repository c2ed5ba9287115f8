"""A training run, from its first step or a checkpoint to its report.

This is the training loop of the README, with a store, plan, loader and runner, plus progress,
checkpoints, validation and Ctrl-C.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import Diverged, NonFiniteLoss
from staticgraph.plans.worker_count import WorkerCount, autosize_workers
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Bar, bar, is_left_out, say
from staticgraph.training import plots
from staticgraph.training.checkpoint import restore_run, save_run
from staticgraph.training.config import TrainConfig, factor, stands_still
from staticgraph.training.history import (
    EpochRecord,
    History,
    StepRecord,
    full_shares,
    summary,
    write_steps,
)
from staticgraph.training.job import Interrupt, Interrupted, SilentEvents
from staticgraph.training.parts import RunParts, memory_of, place_of
from staticgraph.training.report import FILE, PICTURE, STEPS, TrainReport, task_words
from staticgraph.training.run_folder import CONFIG
from staticgraph.training.tasks import evaluate, evaluate_own_loss

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    Events = SummaryWriter | SilentEvents


# The number of steps per read.
READ_EVERY = 20


class UnreadLosses:
    """Steps whose loss has not been copied to the host yet."""

    def __init__(self) -> None:
        self._steps: list[tuple[StepRecord, Tensor]] = []

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def full(self) -> bool:
        """Whether the losses should be read now."""
        return len(self) >= READ_EVERY

    def add(self, step: StepRecord, loss: Tensor) -> None:
        """Adds a step and its loss, 0-dim on the device."""
        self._steps.append((step, loss))

    def read(self) -> list[StepRecord]:
        """Copies all losses to the host at once; returns the steps with their losses, and forgets
        them."""
        if not self._steps:
            return []
        losses = torch.stack([loss for _, loss in self._steps]).tolist()
        read = [step._replace(loss=x) for (step, _), x in zip(self._steps, losses, strict=True)]
        self._steps.clear()
        return read


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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# The file in a run's folder with the modes that ``auto`` chose.
CHOICES = "choices.json"


class Training:
    """A run in progress, used by :func:`staticgraph.training.train.train` and ``resume``.

    Args:
        config: the settings.
        folder: the folder for the run's files.
        progress: whether to report progress, with a bar.
        state: the contents of the checkpoint to resume from; None for a new run.
        ranks: the processes that train together; None if this one trains alone. Rank 0 writes the
            files and reports progress.

    Raises the errors of :class:`staticgraph.training.parts.RunParts`.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        progress: bool,
        state: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config: TrainConfig = config
        self.folder: Path = folder
        self.ranks: Ranks | None = ranks
        self.writes: bool = ranks is None or ranks.first
        self.progress: bool = progress and self.writes
        self.parts: RunParts = RunParts(config, folder, ranks, self.progress, state)
        # None until the first steps were timed.
        fixed = config.workers if isinstance(config.workers, int) else 0
        is_timed = config.workers == "auto" and self.parts.on_host
        self.workers: int | None = None if is_timed else fixed
        self.loader: StaticLoader = self._loader("train")
        self.history: History = History()
        self.state: Mapping[str, Any] | None = state

    def run(self) -> TrainReport:
        """Trains the remaining epochs and writes all files, also before raising a divergence."""
        try:
            return self._run()
        finally:
            # Destroying an NCCL group waits for the CUDA graphs that contain its collectives
            # (pytorch/pytorch#115388).
            if self.ranks is not None:
                self.parts.runner.close()

    def _run(self) -> TrainReport:
        if self.writes:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.parts.plan.save(self.folder / "plan.json")
            self.config.save(self.folder / CONFIG)
        resumed_at = 0 if self.state is None else len(self.state["steps"])
        self._say(self._opening(resumed_at))
        if self.state is not None:
            # Now, since the state of a recorded optimizer may not be replaced later.
            note = restore_run(self.state, self.folder, self.parts, self.loader, self.history)
            if note:
                self._say(note)
        # A resumed run keeps the modes that were chosen by time, since they round differently.
        self.parts.runner.warmup(
            self.parts.source,
            progress=self.progress,
            choices=self.folder / CHOICES,
            steps=len(self.loader) * (self.config.epochs - self.loader.epoch),
        )
        with self._events(resumed_at) as events, Interrupt() as interrupt:
            try:
                while self.loader.epoch < self.config.epochs and not self._stands_still:
                    self._train_epoch(events, interrupt)
                    self._finish_epoch(events)
            except Diverged as error:
                self._finish(resumed_at, error.epoch)
                raise
        return self._finish(resumed_at)

    def _events(self, resumed_at: int) -> SummaryWriter | SilentEvents:
        if not self.writes or is_left_out("TensorBoard's files", "tensorboard"):
            return SilentEvents()
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder), purge_step=resumed_at)

    # ------------------------------------------------------------------ training

    @property
    def _stands_still(self) -> bool:
        """Whether the validation loss no longer falls, so that the run stops early."""
        patience = self.config.early_stop
        return patience is not None and stands_still(self.history.val_losses, patience)

    @property
    def _stopped_early(self) -> bool:
        return self._stands_still and len(self.history.epochs) < self.config.epochs

    def _set_rate(self, step: int) -> None:
        """Sets the learning rate of a step, counted from 0."""
        config = self.config
        if config.schedule != "constant":
            steps = max(1, len(self.loader) * config.epochs)
            share = factor(config.schedule, step, steps, self.history.val_losses)
            for group in self.parts.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):  # a recording reads it in place
                    group["lr"].fill_(config.lr * share)
                else:
                    group["lr"] = config.lr * share

    def _train_epoch(self, events: Events, interrupt: Interrupt) -> None:
        epoch = self.loader.epoch
        # The rows of each batch, summed over all ranks.
        batcher = self.loader.batcher
        rows = iter(batcher.rows(epoch).sum(axis=1).tolist()[batcher.position :])
        unread = UnreadLosses()
        clock = time.perf_counter()
        with bar(
            total=len(self.parts.store.splits["train"]),
            initial=self.history.graphs_in(epoch),
            desc=f"epoch {epoch + 1}/{self.config.epochs}",
            unit=" graphs",
            show=self.progress,
        ) as shown:
            for batch in self._batches():
                graphs, nodes, edges, *_ = next(rows)
                step = StepRecord(epoch, batch.bucket, graphs, nodes, edges, math.nan)
                self._set_rate(len(self.history.steps) + len(unread))
                try:
                    loss = self.parts.runner.step(batch)
                except NonFiniteLoss as error:
                    self._read(unread, events, shown)
                    self.history.steps.append(step)
                    number = len(self.history.steps)
                    self._diverged(f"the loss of step {number}: {error}", error)
                unread.add(step, loss)
                number = len(self.history.steps) + len(unread)
                due = number % self.config.checkpoint_every == 0
                stops = self._stops(interrupt, due or unread.full)
                if due or stops or unread.full:
                    self._read(unread, events, shown)
                shown.update(graphs)
                if due or stops:
                    clock = self._elapsed(clock)
                    self._save()
                if stops:
                    raise Interrupted(
                        f"stopped after {how_many(number, 'step')}; continue with staticgraph "
                        f"train --resume --out {self.folder}"
                    )
            self._read(unread, events, shown)
            try:
                self.parts.runner.check_finite()
            except NonFiniteLoss as error:
                self._diverged(str(error), error)
        self._elapsed(clock)

    def _batches(self) -> Iterator[StaticBatch]:
        """The remaining batches of the epoch; the first ones without workers if their number is
        still to be determined."""
        if self.workers is None:
            epoch = self.loader.epoch
            with closing(iter(self.loader)) as first:
                choice = yield from timed(first, self.parts.device)
            if self.loader.epoch != epoch:
                return
            if choice is not None:
                self.workers = choice.num_workers
                self._say(f"{how_many(self.workers, 'worker')}: {choice.reason}")
                state = self.loader.state_dict()
                self.loader = self._loader("train")
                self.loader.load_state_dict(state)
        yield from self.loader

    def _stops(self, interrupt: Interrupt, asking: bool) -> bool:
        """Whether the run stops after this step: a single process stops at the first request;
        several stop together, at a step where they exchange the request (``asking``)."""
        if self.ranks is None:
            return interrupt.requested
        return asking and self.ranks.any(interrupt.requested)

    def _elapsed(self, clock: float) -> float:
        """Adds the time since ``clock`` to the epoch's seconds; returns the current time."""
        now = time.perf_counter()
        self.history.seconds += now - clock
        return now

    def _read(self, unread: UnreadLosses, events: Events, shown: Bar) -> None:
        """Reads the losses from the device, and ends the run if one is not finite."""
        read = unread.read()
        if not read:
            return
        steps = self.history.steps
        for step in read:
            events.add_scalar("loss/train", step.loss, len(steps))
            steps.append(step)
        graphs = max(1, sum(step.graphs for step in read))
        mean = sum(step.loss * step.graphs for step in read) / graphs
        shown.set_postfix_str(f"loss {mean:.4f}", refresh=False)
        for number, step in enumerate(read, len(steps) - len(read) + 1):
            if not math.isfinite(step.loss):
                self._diverged(f"the loss of step {number} is {step.loss}")

    def _diverged(self, what: str, cause: NonFiniteLoss | None = None) -> NoReturn:
        """Ends the run with an error; the cause, if there is one, names the graphs."""
        steps = self.history.steps
        epoch = steps[-1].epoch + 1 if steps else self.loader.epoch + 1
        raise Diverged(
            f"the training diverged in epoch {epoch}: {what}. Train again with a lower --lr; "
            f"{self.folder / FILE} says how far it came",
            epoch,
        ) from cause

    def _finish_epoch(self, events: Events) -> None:
        number, history = self.loader.epoch - 1, self.history
        train_loss, graphs = summary(history.steps, number)
        val_loss, val_metric = self._evaluate("val")
        epoch = EpochRecord(number, train_loss, history.seconds, graphs, val_loss, val_metric)
        history.epochs.append(epoch)
        history.seconds = 0.0
        at, metric = len(history.steps), self.parts.task.metric_name
        events.add_scalar("graphs per second", epoch.graphs_per_s, at)
        judged = "no graphs to validate"
        if val_loss is not None and val_metric is not None:
            events.add_scalar("loss/val", val_loss, at)
            events.add_scalar(f"{metric}/val", val_metric, at)
            judged = f"val loss {val_loss:.4f}, val {metric} {val_metric:.4f}"
        self._say(
            f"epoch {number + 1}: loss {train_loss:.4f}, {judged}, "
            f"{epoch.graphs_per_s:,.0f} graphs/s"
        )
        self._save()

    def _evaluate(self, split: str) -> tuple[float | None, float | None]:
        """The loss and the metric of a split; both None if it is empty."""
        parts = self.parts
        if not len(parts.store.splits.get(split, ())):
            return None, None
        judge = evaluate if parts.loss is None else evaluate_own_loss
        return judge(parts.runner, self._loader(split), parts.task, self.ranks)

    def _loader(self, split: str) -> StaticLoader:
        return self.parts.loader(split, self.workers or 0)

    # ------------------------------------------------------------------ saving

    def _save(self) -> None:
        state = self.parts.model.state_dict()
        floats = [value for value in state.values() if value.is_floating_point()]
        # A checkpoint that is not finite would replace the last good one.
        if not torch.stack([value.isfinite().all() for value in floats]).all():
            self._diverged("what was trained is not finite")
        save_run(self.folder, self.parts, self.loader, self.history)

    def _finish(self, resumed_at: int, diverged: int | None = None) -> TrainReport:
        parts, store, history = self.parts, self.parts.store, self.history
        report = TrainReport(
            folder=str(self.folder),
            config=asdict(self.config),
            data={
                "name": store.name,
                "graphs": len(store),
                "place": place_of(parts.source),
                "splits": {name: len(ids) for name, ids in store.splits.items()},
            },
            task=parts.task.name,
            outputs=parts.task.num_outputs,
            classes=store.schema["y"].classes,
            metric=parts.task.metric_name,
            parameters=sum(p.numel() for p in parts.model.parameters()),
            epochs=tuple(history.epochs),
            test_metric=None if diverged else self._evaluate("test")[1],
            resumed_at=resumed_at,
            runner=parts.runner.report(),
            files={"settings": CONFIG, "steps": STEPS, "report": FILE, "picture": PICTURE},
            diverged=diverged,
            memory=memory_of(parts.model, parts.optimizer, parts.source, parts.device),
            stopped_early=len(history.epochs) if self._stopped_early else None,
            full_batches=full_shares(history.steps, parts.plan.capacities),
        )
        if not self.writes:
            return report
        write_steps(self.folder / STEPS, history.steps)
        report.save(self.folder / FILE)
        if not is_left_out(self.folder / PICTURE, "matplotlib"):
            plots.save_picture(self.folder / PICTURE, report, history.steps, parts.plan.capacities)
        return report

    # ------------------------------------------------------------------ messages

    def _opening(self, resumed_at: int) -> str:
        parts, store, mode = self.parts, self.parts.store, self.parts.runner.mode
        task, classes = parts.task, store.schema["y"].classes
        timed_first = "auto (each way to run is timed before the first step)"
        chosen = timed_first if parts.runner.measures else f"{mode.name} ({mode.reason})"
        shapes = ", ".join(map(str, parts.plan.capacities))
        again = f"resuming after step {resumed_at:,}; " if resumed_at else ""
        return (
            f"{again}{len(store.splits['train']):,} of {how_many(len(store), 'graph')} "
            f"of {store.name} in {how_many(len(self.loader), 'batch')} per epoch; buckets "
            f"{shapes}; mode {chosen} on {parts.device}{self._several()}, graphs "
            f"{place_of(parts.source)}, kernels {'on' if parts.kernels else 'off'}; "
            f"{task_words(task.name, task.num_outputs, task.metric_name, classes)}"
        )

    def _several(self) -> str:
        return "" if self.ranks is None else f" of {how_many(self.ranks.world_size, 'process')}"

    def _say(self, text: str) -> None:
        if self.progress:
            say(text)
