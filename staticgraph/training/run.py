"""A training run, from its first step or a checkpoint to its report.

This is the training loop of the README, with a store, plan, loader and runner, plus progress,
checkpoints, validation and Ctrl-C.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.errors import Diverged, NonFiniteLoss
from staticgraph.plans.worker_count import WorkerCount, autosize_workers
from staticgraph.text.how_many import how_many, some
from staticgraph.text.progress import Bar, bar, is_left_out, say
from staticgraph.training import plots
from staticgraph.training.build_run import RunParts
from staticgraph.training.checkpoint import restore_run, save_run
from staticgraph.training.config import (
    CHOICES,
    CONFIG,
    PICTURE,
    REPORT,
    STEPS,
    factor,
    stands_still,
)
from staticgraph.training.job import ALONE, Interrupt, Interrupted
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
from staticgraph.training.tasks import Evaluation, evaluate

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


def not_finite(model: torch.nn.Module) -> set[str]:
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


class Training(RunParts):
    """A run in progress, used by :func:`staticgraph.training.train.train` and ``resume``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loader: StaticLoader = self.load("train")
        self.history: History = History()
        self.resumed_at: int = 0 if self.state is None else len(self.state["steps"])
        self._events: Any = None
        # Graphs of the latest validation.
        self._not_finite: tuple[int, ...] = ()
        # On purpose, such as a mask or the least loss so far.
        self._infinite: set[str] = not_finite(self.model)

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
            self._say(restore_run(self.state, self, self.loader, self.history))
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
        patience = self.config.early_stop
        return patience is not None and stands_still(self.history.val_losses, patience)

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
                self.loader = self.load("train")
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
        own_loss = self.loss is not None
        return evaluate(self.runner, self.load(split), self.task, self.ranks, own_loss)

    # ------------------------------------------------------------------ saving

    def _save(self) -> None:
        # A checkpoint that is not finite would replace the last good one.
        if not_finite(self.model) - self._infinite:
            raise self._diverged("what was trained is not finite")
        save_run(self, self.loader, self.history)

    def _finish(self, diverged: int | None) -> TrainReport:
        """Tests the model, unless it diverged, and writes the files of the finished run."""
        store, history = self.store, self.history
        stopped = self._stands_still and len(history.epochs) < self.config.epochs
        report = TrainReport(
            folder=str(self.folder),
            config=asdict(self.config),
            data={
                "name": store.name,
                "graphs": len(store),
                "place": self.place,
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
            memory=self.memory(),
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
            f"{self.place}; "
            f"{task_words(task.name, task.num_outputs, task.metric_name, classes)}"
        )

    def _say(self, text: str) -> None:
        if self.progress and text:
            say(text)
