"""A training run from its first step, or from a checkpoint, to its report.

Store, plan, loader and runner meet here, a few lines each: this is the loop that the README writes
out, with progress, checkpoints, validation and Ctrl-C added.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from staticgraph import datasets
from staticgraph.batches.loader import StaticLoader
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.distributed.ranks import Ranks
from staticgraph.errors import Diverged, NonFiniteLoss
from staticgraph.nn import convert
from staticgraph.plans.choose import BucketPlan, plan_buckets
from staticgraph.recording.recording import Recording
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.subject import Subject
from staticgraph.store.digest import digest_of
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Bar, bar, say
from staticgraph.training import checkpoint
from staticgraph.training.compile_ahead import compile_ahead
from staticgraph.training.config import TrainConfig, takes_kernels
from staticgraph.training.config_file import FILE as CONFIG
from staticgraph.training.config_file import write_config
from staticgraph.training.data import check_judged, opened, place_of, source_of
from staticgraph.training.device import device_of
from staticgraph.training.evaluate import evaluate
from staticgraph.training.history import Epoch, Step, summary, write_steps
from staticgraph.training.interrupt import Interrupt, Interrupted
from staticgraph.training.job import SilentEvents, first_alone
from staticgraph.training.loops import training_loops
from staticgraph.training.memory import memory_of
from staticgraph.training.report import FILE, PICTURE, STEPS, TrainReport
from staticgraph.training.schedule import factor, stands_still
from staticgraph.training.subject import attends, load_weights, mode_of, model_of
from staticgraph.training.tasks import BatchLoss, Task, task_of
from staticgraph.training.timed_batches import timed

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    Events = SummaryWriter | SilentEvents

# Of a run's folder: the ways that ``auto`` chose.
CHOICES = "choices.json"
# Between the seeds of ranks, so that seeds of runs, which people count from 0, do not meet them.
APART = 1_000_003
# Losses stay on the device for so many steps: reading each one would wait for the device each time.
READ_EVERY = 20


class Training:
    """A run in progress: what :func:`staticgraph.training.train.train` and ``resume`` share."""

    config: TrainConfig
    folder: Path
    ranks: Ranks | None
    task: Task

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        progress: bool,
        state: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.folder, self.ranks = config, folder, ranks
        self.writes: bool = ranks is None or ranks.first
        self.progress: bool = progress and self.writes
        self.device: torch.device = device_of(config.device, ranks)
        self.kernels: bool = takes_kernels(config.kernels, config.model, self.device.type)
        datasets.check(config.data, target=config.target)  # before half a minute of compiling
        if self.kernels and self.device.type == "cpu":
            loops = training_loops(config.model)
            first_alone(ranks, lambda: compile_ahead(loops, show=self.progress))

        self._say(f"opening {config.data} and planning its batches")

        self.store: GraphStore = opened(config, ranks, self.progress)
        self.data: str = digest_of(self.store)
        if state is not None and state["data"] != self.data:
            raise ValueError(
                f"the run in {folder} was begun with other data: {config.data} has other features, "
                f"labels, edges or splits now (digest {self.data}, was {state['data']}); put the "
                "data back, or begin another run"
            )
        self.task = task = task_of(self.store)
        torch.manual_seed(config.seed)
        self.model: torch.nn.Module = model_of(config, self.store, task.num_outputs).to(self.device)
        if ranks is not None:
            ranks.check_alike(**{"the data": self.data})
            self.model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
            if not ranks.first:  # or every rank would drop the same places
                torch.manual_seed(config.seed + APART * ranks.rank)
        convert(self.model, kernels=self.kernels)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.model.parameters(), lr=config.lr, fused=True, capturable=self.device.type == "cuda"
        )
        self.source: GraphStore | DeviceStore = source_of(
            config, self.store, self.device, self.kernels
        )
        train_ids = self.store.splits["train"]
        self.plan: BucketPlan = (
            BucketPlan.from_dict(state["plan"])
            if state
            else plan_buckets(
                self.store,
                config.batch_size,
                indices=train_ids,
                attention="auto" if attends(self.model) else None,
            )
        )
        on_host = self.source is self.store
        # None until the first steps have told.
        self.workers = None if config.workers == "auto" and on_host else _number(config.workers)
        self.loader: StaticLoader = self._loader("train")
        subject = Subject(
            self.model,
            loss=BatchLoss(task.row_loss),
            optimizer=self.optimizer,
            autocast=None if config.autocast is None else getattr(torch, config.autocast),
            clip_norm=config.clip_norm,
            accumulate=config.accumulate,
        )
        self.runner: StaticGraphRunner = StaticGraphRunner(
            subject, self.plan, mode_of(config), recording=Recording(allow_cpu=config.allow_cpu)
        )
        check_judged(config, self.store)
        self.steps: list[Step] = []
        self.epochs: list[Epoch] = []
        self.seconds: float = 0.0  # of the present epoch, earlier sittings included
        self.state = state

    def run(self) -> TrainReport:
        """Trains what is left, and writes every file; also where it diverges, before it says so."""
        from torch.utils.tensorboard import SummaryWriter

        if self.writes:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.plan.save(self.folder / "plan.json")
            write_config(self.folder / CONFIG, self.config)
        resumed_at = 0 if self.state is None else len(self.state["steps"])
        self._say(self._opening(resumed_at))
        if self.state is not None:
            self._restore(self.state)  # a recorded optimizer's state may not be exchanged later
        # What a run chose by time it keeps when it is resumed: the ways round differently.
        self.runner.warmup(self.source, progress=self.progress, choices=self.folder / CHOICES)
        events = (
            SummaryWriter(str(self.folder), purge_step=resumed_at)
            if self.writes
            else SilentEvents()
        )
        with events, Interrupt() as interrupt:
            try:
                while self.loader.epoch < self.config.epochs and not self._stands_still:
                    self._train_epoch(events, interrupt)
                    self._finish_epoch(events)
            except Diverged as error:
                self._finish(resumed_at, error.epoch)
                raise
        return self._finish(resumed_at)

    # ------------------------------------------------------------------ training

    @property
    def _val_losses(self) -> list[float | None]:
        return [epoch.val_loss for epoch in self.epochs]

    @property
    def _stands_still(self) -> bool:
        """Whether the run ends before its last epoch."""
        patience = self.config.early_stop
        return patience is not None and stands_still(self._val_losses, patience)

    @property
    def _stopped_early(self) -> bool:
        return self._stands_still and len(self.epochs) < self.config.epochs

    def _set_rate(self, step: int) -> None:
        """The learning rate of a step, counted from 0."""
        config = self.config
        if config.schedule != "constant":
            steps = max(1, len(self.loader) * config.epochs)
            share = factor(config.schedule, step, steps, self._val_losses)
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):  # which a recording reads where it is
                    group["lr"].fill_(config.lr * share)
                else:
                    group["lr"] = config.lr * share

    def _train_epoch(self, events: Events, interrupt: Interrupt) -> None:
        epoch = self.loader.epoch
        # Of all ranks together.
        batcher = self.loader.batcher
        rows = iter(batcher.rows(epoch).sum(axis=1).tolist()[batcher.position :])
        unread: list[tuple[Step, Tensor]] = []
        done = sum(step.graphs for step in self.steps if step.epoch == epoch)
        clock = time.perf_counter()
        with bar(
            total=len(self.store.splits["train"]),
            initial=done,
            desc=f"epoch {epoch + 1}/{self.config.epochs}",
            unit=" graphs",
            show=self.progress,
        ) as shown:
            for batch in self._batches():
                graphs, nodes, edges, *_ = next(rows)
                step = Step(epoch, batch.bucket, graphs, nodes, edges, math.nan)
                self._set_rate(len(self.steps) + len(unread))
                try:
                    loss = self.runner.step(batch)
                except NonFiniteLoss as error:
                    self._read(unread, events, shown)
                    self.steps.append(step)
                    self._diverged(f"the loss of step {len(self.steps)}: {error}", error)
                unread.append((step, loss))
                number = len(self.steps) + len(unread)
                due = number % self.config.checkpoint_every == 0
                stops = self._stops(interrupt, due or len(unread) == READ_EVERY)
                if due or stops or len(unread) == READ_EVERY:
                    self._read(unread, events, shown)
                shown.update(graphs)
                if due or stops:
                    self.seconds, clock = self._elapsed(clock)
                    self._save()
                if stops:
                    raise Interrupted(
                        f"stopped after {how_many(number, 'step')}; continue with staticgraph "
                        f"train --resume --out {self.folder}"
                    )
            self._read(unread, events, shown)
            try:
                self.runner.check_finite()
            except NonFiniteLoss as error:
                self._diverged(str(error), error)
        self.seconds, _ = self._elapsed(clock)

    def _batches(self) -> Iterator[StaticBatch]:
        """The rest of the epoch; where workers are to be found out, first without any."""
        if self.workers is None:
            epoch = self.loader.epoch
            with closing(iter(self.loader)) as first:
                found = yield from timed(first, self.device)
            if self.loader.epoch != epoch:
                return
            if found is not None:
                self.workers = found.num_workers
                self._say(f"{how_many(self.workers, 'worker')}: {found.reason}")
                state = self.loader.state_dict()
                self.loader = self._loader("train")
                self.loader.load_state_dict(state)
        yield from self.loader

    def _stops(self, interrupt: Interrupt, asking: bool) -> bool:
        """Whether the run stops after this step: on one process as soon as it is asked to; several
        stop together, at a step where they ask each other."""
        if self.ranks is None:
            return interrupt.requested
        return asking and self.ranks.any(interrupt.requested)

    def _elapsed(self, clock: float) -> tuple[float, float]:
        now = time.perf_counter()
        return self.seconds + now - clock, now

    def _read(self, unread: list[tuple[Step, Tensor]], events: Events, shown: Bar) -> None:
        """Fetches losses from the device, in one go, and ends the run where one is not finite."""
        if not unread:
            return
        losses = torch.stack([loss for _, loss in unread]).tolist()
        for (step, _), loss in zip(unread, losses, strict=True):
            events.add_scalar("loss/train", loss, len(self.steps))
            self.steps.append(step._replace(loss=loss))
        shown.set_postfix_str(f"loss {sum(losses) / len(losses):.4f}", refresh=False)
        unread.clear()
        for number, loss in enumerate(losses, len(self.steps) - len(losses) + 1):
            if not math.isfinite(loss):
                self._diverged(f"the loss of step {number} is {loss}")

    def _diverged(self, what: str, cause: NonFiniteLoss | None = None) -> NoReturn:
        """Ends the run; the cause, where there is one, names the graphs."""
        epoch = self.loader.epoch + 1 if not self.steps else self.steps[-1].epoch + 1
        raise Diverged(
            f"the training diverged in epoch {epoch}: {what}. Train again with a lower --lr; "
            f"{self.folder / FILE} says how far it came",
            epoch,
        ) from cause

    def _finish_epoch(self, events: Events) -> None:
        number = self.loader.epoch - 1
        train_loss, graphs = summary(self.steps, number)
        val_loss, val_metric = self._evaluate("val")
        epoch = Epoch(number, train_loss, self.seconds, graphs, val_loss, val_metric)
        self.epochs.append(epoch)
        self.seconds = 0.0
        events.add_scalar("graphs per second", epoch.graphs_per_s, len(self.steps))
        judged = "no graphs to validate"
        if val_loss is not None and val_metric is not None:
            events.add_scalar("loss/val", val_loss, len(self.steps))
            events.add_scalar(f"{self.task.metric_name}/val", val_metric, len(self.steps))
            judged = f"val loss {val_loss:.4f}, val {self.task.metric_name} {val_metric:.4f}"
        self._say(
            f"epoch {number + 1}: loss {train_loss:.4f}, {judged}, "
            f"{epoch.graphs_per_s:,.0f} graphs/s"
        )
        self._save()

    def _evaluate(self, split: str) -> tuple[float | None, float | None]:
        """Loss and metric over a split; None and None where it is empty."""
        if not len(self.store.splits.get(split, ())):
            return None, None
        return evaluate(self.runner, self._loader(split), self.task, self.ranks)

    def _loader(self, split: str) -> StaticLoader:
        return StaticLoader(
            self.source,
            self.plan,
            indices=self.store.splits[split],
            exact=split == "train",
            shuffle=split == "train",
            seed=self.config.seed,
            device=self.device,
            num_workers=self.workers or 0,
            pointers=self.kernels,
            rank=0 if self.ranks is None else self.ranks.rank,
            world_size=1 if self.ranks is None else self.ranks.world_size,
        )

    # ------------------------------------------------------------------ keeping

    def _save(self) -> None:
        state = self.model.state_dict()
        floats = [value for value in state.values() if value.is_floating_point()]
        # A checkpoint that is not finite would take the place of the last good one.
        if not torch.stack([value.isfinite().all() for value in floats]).all():
            self._diverged("what was trained is not finite")
        others = {}
        if self.ranks is not None:
            others["ranks_random"] = self.ranks.told(checkpoint.random_state(self.device))
        if not self.writes:
            return
        checkpoint.save(
            self.folder,
            **others,
            config=asdict(self.config),
            data=self.data,
            plan=self.plan.to_dict(),
            model=state,
            optimizer=self.optimizer.state_dict(),
            runner=self.runner.state_dict(),
            loader=self.loader.state_dict(),
            steps=[tuple(step) for step in self.steps],
            epochs=[tuple(epoch) for epoch in self.epochs],
            seconds=self.seconds,
        )

    def _restore(self, state: Mapping[str, Any]) -> None:
        load_weights(self.model, state["model"], self.config.model, self.folder)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = [Step(*step) for step in state["steps"]]
        self.epochs = [Epoch(*epoch) for epoch in state["epochs"]]
        self.seconds = state["seconds"]
        if "runner" in state:  # runs of an older version accumulated nothing
            self.runner.load_state_dict(state["runner"])
        now = self.loader.batcher.world_size
        then = state["loader"]["of"].get("world_size", 1)
        if now != then:
            self._regroup(state["loader"], now, then)
            return
        self.loader.load_state_dict(state["loader"])
        if self.ranks is None:
            checkpoint.set_random_state(state["random"])
        else:
            checkpoint.set_random_state(state["ranks_random"][self.ranks.rank], self.device)

    def _regroup(self, loader: Mapping[str, Any], now: int, then: int) -> None:
        """Goes on with another number of processes: their steps are others, so an epoch that had
        begun is not continued."""
        begun = loader["position"] > 0
        self.loader.set_epoch(loader["epoch"] + begun)
        if begun:
            self.seconds = 0.0
            self._say(
                f"begun on {how_many(then, 'process')}, now {now}: what is left of epoch "
                f"{loader['epoch'] + 1} is left out"
            )

    def _finish(self, resumed_at: int, diverged: int | None = None) -> TrainReport:
        from staticgraph.training.plots import save_picture

        report = TrainReport(
            folder=str(self.folder),
            config=asdict(self.config),
            data={
                "name": self.store.name,
                "graphs": len(self.store),
                "place": place_of(self.source),
                "splits": {name: len(ids) for name, ids in self.store.splits.items()},
            },
            task=self.task.name,
            metric=self.task.metric_name,
            parameters=sum(p.numel() for p in self.model.parameters()),
            epochs=tuple(self.epochs),
            test_metric=None if diverged else self._evaluate("test")[1],
            resumed_at=resumed_at,
            runner=self.runner.report(),
            files={"settings": CONFIG, "steps": STEPS, "report": FILE, "picture": PICTURE},
            diverged=diverged,
            memory=memory_of(self.model, self.optimizer, self.source, self.device),
            stopped_early=len(self.epochs) if self._stopped_early else None,
        )
        if not self.writes:
            return report
        write_steps(self.folder / STEPS, self.steps)
        report.save(self.folder / FILE)
        save_picture(self.folder / PICTURE, report, self.steps, self.plan.capacities)
        return report

    # ------------------------------------------------------------------ saying

    def _opening(self, resumed_at: int) -> str:
        plan, mode = self.plan, self.runner.mode
        timed_first = "auto (each way to run is timed before the first step)"
        chosen = timed_first if self.runner.measures else f"{mode.name} ({mode.reason})"
        shapes = ", ".join(map(str, plan.capacities))
        again = f"resuming after step {resumed_at:,}; " if resumed_at else ""
        return (
            f"{again}{len(self.store.splits['train']):,} of {how_many(len(self.store), 'graph')} "
            f"of {self.store.name} in {how_many(len(self.loader), 'batch')} per epoch; buckets "
            f"{shapes}; mode {chosen} on {self.device}{self._several()}, graphs "
            f"{place_of(self.source)}, kernels {'on' if self.kernels else 'off'}"
        )

    def _several(self) -> str:
        return "" if self.ranks is None else f" of {how_many(self.ranks.world_size, 'process')}"

    def _say(self, text: str) -> None:
        if self.progress:
            say(text)


def _number(workers: int | str) -> int:
    """Workers of a store on the device are none."""
    return 0 if isinstance(workers, str) else workers
