"""What happens before a runner's steps: checks, compilations, recordings and trials.

The problem: a late compilation costs a minute in the middle of an epoch, and a late recording finds
the memory taken. So :meth:`Preparation.run`, the warm-up, prepares all keys at once, largest first,
under the budget, by running each phase of a bucket over padding alone; ``auto`` times its ways at
the same time. Model, optimizer and random state are restored afterwards. The effect of padding on
the model is checked first, since a model that padding reaches need not be compiled.

What needs a batch of the data waits for one: :meth:`Preparation.look_at` checks padding with it,
chooses the way of its bucket, and compares the bucket's first step with eager. It gives its verdict
once; a step is not looked at again until an epoch begins, a layer comes or goes, or the number of
steps calls for it.

A plan made from a store knows the fields of the data; a plain list of capacities does not, so an
example must supply them before the first batch exists.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from staticgraph.batches.batch.batch_arrays import looked_in_epoch
from staticgraph.batches.batch.own_class import static_of
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.padding.read_batch import graphs_of, stored_batch
from staticgraph.checking.comparison import Comparer
from staticgraph.checking.example_batch import example_of
from staticgraph.checking.padding_check import PaddingCheck, next_look
from staticgraph.distributed.ranks import smallest_budget
from staticgraph.errors import NotStatic
from staticgraph.memory.budget import MemoryBudget
from staticgraph.runner import compile_cache
from staticgraph.runner.memory_commitments import FROM_IDS, OF_PAIRS, Commitments
from staticgraph.runner.steps import Steps
from staticgraph.runner.trials import Trials, trial_batch
from staticgraph.runner.verification import FirstSteps
from staticgraph.runner.way_choice import WayChoice
from staticgraph.schema import Schema
from staticgraph.steps.compilation.graph_trees import drop_recordings, whole_recording
from staticgraph.steps.compilation.modes import OWN
from staticgraph.steps.state.training_hooks import without_callbacks
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.on_device import DeviceStore
from staticgraph.text.progress import bar

PHASES = ("step", "eval", "forward")
# torch's graph trees run a function once to warm up, once to record, and then replay it.
RECORDING_RUNS = 3


def _unwatched(_bucket: int, _phase: str) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Collects garbage every 50,000 objects instead of 700, and only among new ones.

    A trace makes many that stay alive: looking at them and at all of torch's again and again took a
    fifth of the warm-up of a new process (GINE on ESOL, AMD EPYC, 2026-11-30).
    """
    thresholds = gc.get_threshold()
    if thresholds[0]:
        gc.set_threshold(50_000, 10, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class Preparation:
    """Prepares everything a runner runs, and keeps what it learned on the way.

    Args:
        steps: the steps to prepare.
        budget: a cap on what torch holds; None for no cap.

    Attributes:
        choices: what ``auto`` chose.
        least_fills: the share of each bucket's rows below which eager is faster, as it measured.
        notes: remarks of its trials, for the report.
        seconds: duration of the last warm-up; None before the first.
        cold_s: duration of the warm-up that wrote the cache used by the last one; None without.
        schema: the fields of the data: the plan's, or those of the latest example; None while
            unknown.
        commitments: the memory ledger; None without a budget.
        padding: the padding check; None where the user turned it off.
        compared: the buckets whose first step was compared with eager.
        watched: returns a context manager that is entered around each preparation of a (bucket,
            phase).
        warmed: called between the runs that warm a key up and those whose memory counts as a
            step's; None if nothing is measured.
        ready: (bucket, work, training flag) of the batches that need no look.
        taken: how many batches of the training came since the first.
        next_look: the number of these at which one is looked at, ready or not.
        epoch: the epoch of the batch that was looked at last.

    Raises:
        BudgetExceeded: the plan needs more than the budget; nothing was compiled yet.
    """

    def __init__(
        self,
        steps: Steps,
        budget: MemoryBudget | None,
    ) -> None:
        subject, execution = steps.subject, steps.execution
        self.choices: tuple[WayChoice, ...] = ()
        self.least_fills: dict[int, float] = {}
        self.notes: list[str] = []
        self.seconds: float | None = None
        self.cold_s: float | None = None
        self.schema: Schema | None = steps.plan.schema
        self.padding: PaddingCheck | None = None
        if subject.check_padding:
            compiled = execution.mode.compiled and execution.auto is None
            self.padding = PaddingCheck(Comparer(subject, steps.computation, compiled))
        budget = budget and smallest_budget(budget, execution.ranks)
        self.commitments: Commitments | None = budget and Commitments.of(
            subject, steps.plan, budget, execution.records_gradients
        )
        self.compared: FirstSteps = FirstSteps(steps)
        self.watched: Callable[[int, str], AbstractContextManager[object]] = _unwatched
        self.warmed: Callable[[], None] | None = None
        self.ready: set[tuple[int, str, bool, bool]] = set()
        self.taken: int = -1
        self.next_look: float = 0.0
        self.epoch: object = None
        self._steps, self._subject, self._execution = steps, subject, execution
        self._model, self._device = subject.model, subject.device
        self._trials: Trials | None = None
        self._may_be_old = False  # whether compiled steps are from before this warm-up
        self._recorded_whole: set[tuple[str, int, str]] = set()

    # ------------------------------------------------------------------ a batch

    def look_at(self, batch: StaticBatch, work: str) -> StaticBatch:
        """Does what the next batch calls for before its step.

        Args:
            batch: of a bucket of the plan.
            work: ``step`` or ``forward``.

        Returns:
            The batch, as the steps take it.

        Raises:
            PaddingLeaks: padding reaches real rows.
        """
        training = work == "step" or self._model.training
        key = batch.bucket, work, training, batch.layout.schema.keep_order
        if self.schema is None:  # from now on, new graphs are read as these are
            self.schema = batch.layout.schema
        padding = None if self.has_recorded else self.padding
        if padding is not None and padding.wanted(work, batch, self.taken):
            with _rarely_collected():
                padding.check_batch(batch, work)
        batch = self._choose_on(batch, work)
        if padding is not None and work == "step" and self.commitments is None:
            self.compared.compare(batch)
        self.epoch = looked_in_epoch(batch)
        self.next_look = math.inf if padding is None else next_look(self.taken)
        if (padding is None or not padding.wanted(work)) and not self._waits(batch, work):
            self.ready.add(key)
        return batch

    @property
    def has_recorded(self) -> bool:
        """Whether there are recordings, next to which there is no memory for another step."""
        trees = self._steps.mode.recording and self.seconds is not None
        return trees or self._steps.recorded is not None

    def forget(self) -> None:
        """Makes the next batch of every bucket be looked at."""
        self.ready.clear()

    def _waits(self, batch: StaticBatch, work: str) -> bool:
        """Whether a batch's bucket still has to be timed with a batch that has graphs."""
        key = batch.bucket, self._steps.phase(work)
        return self._trials is not None and key in self._trials.waiting

    def _choose_on(self, batch: StaticBatch, work: str) -> StaticBatch:
        """Chooses how a batch's bucket runs, if that waits for a batch with graphs."""
        trials, steps = self._trials, self._steps
        phase = steps.phase(work)  # outside of the block, which enables gradients
        if trials is None or not self._waits(batch, work) or not batch.real:
            return batch
        steps.fused = True  # until the choice, batches carry what every way reads
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            steps.untouched(),
            steps.accumulated.set_aside(),
        ):
            self._take_choices(trials.finish(steps.accept(batch), phase))
        return steps.accept(batch)

    def _take_choices(self, choices: tuple[WayChoice, ...]) -> None:
        self.choices = choices
        if self.commitments is None:  # a budget has no room for batches of other sizes
            shares = {each.bucket: each.least_fill for each in choices if each.phase == "step"}
            self.least_fills.update(shares)

    # ------------------------------------------------------------------ fields

    def fields_of(self, example: StaticBatch | GraphColumns | None, remedy: str) -> Schema:
        """Returns the fields of an example or, without one, the known fields.

        Args:
            example: a batch or a store.
            remedy: what the caller could have passed, for the error message.

        Raises:
            ValueError: the fields are not known.
        """
        schema = self.schema if example is None else _schema_of(example)
        if schema is None:
            raise ValueError(
                f"the plan does not say what fields a graph has: pass {remedy}, or make the plan "
                "of graphs, plan_buckets(store, ...) or plan_stream(graphs, ...)"
            )
        return schema

    # ------------------------------------------------------------------ all buckets

    @_rarely_collected()
    def run(
        self,
        source: Any,
        phases: Iterable[str] | None,
        progress: bool,
        cache: str | Path | bool | None,
        choices: str | Path | None,
        steps_to_come: int | None = None,
    ) -> None:
        """Prepares every bucket in every phase; see :meth:`StaticGraphRunner.warmup`."""
        self.forget()
        example = self._example_in(source)
        if example is not None:
            self.schema = _schema_of(example)
        self._check_padding(example)
        if not self._execution.compiles:
            return
        schema = self.fields_of(None, "warmup(example=store) or a batch")
        if phases is None:
            phases = ("step", "eval") if self._subject.trains else ("eval",)
        phases = tuple(phases)
        # Largest first: later, smaller recordings fit into the memory of earlier ones.
        keys = [(b, p) for b in reversed(range(len(self._steps.plan.capacities))) for p in phases]
        device, auto = self._device, self._execution.auto
        if isinstance(cache, bool):
            name = self._execution.mode.name
            what = (self._subject.model, self._steps.plan.capacities, schema, name, device)
            cache = compile_cache.default_path(*what) if cache else None
        started = time.perf_counter()
        self.cold_s = None if cache is None else compile_cache.load(cache, device)
        self._steps.close()
        self._steps.compiled.warmed_up = False  # what a second warm-up compiles is not late
        self._may_be_old = len(self._steps.compiled) > 0
        self._commit_gradients(phases)
        prepare = partial(self.prepare, schema=schema, example=example)
        with (
            self._steps.untouched(),
            self._steps.accumulated.set_aside(),
            bar(keys, desc="warming up", unit="", show=progress) as progress_bar,
        ):
            if auto is None:
                for bucket, phase in progress_bar:
                    progress_bar.set_postfix_str(f"bucket {bucket} {phase}")
                    prepare(self._steps.mode.name, bucket, phase)
            else:
                # Several ranks need not meet a bucket in the same step, so none of them waits.
                waits = self._execution.only_fused and self._execution.ranks is None
                trials = Trials(self._steps, auto, prepare, steps_to_come, waits)
                self._trials = trials
                file = f"{cache}.choices.json" if choices is None and cache else choices
                batches = partial(trial_batch, example=example, device=device)
                self._take_choices(trials.run(keys, schema, batches, file, progress_bar))
                self.notes = trials.notes
            unbound = self.commitments is None  # a budget holds no eager step beside these
            if unbound and self.padding is not None and example is not None and "step" in phases:
                self.compared.buckets.clear()
                for bucket in range(len(self._steps.plan.capacities)):
                    batch = trial_batch(self._steps.layout(bucket, schema), example, device)
                    self.compared.compare(batch)
        self.seconds = time.perf_counter() - started
        if cache is not None:
            compile_cache.save(cache, device, self.seconds if self.cold_s is None else self.cold_s)
        self.finish()
        self._steps.finite.clear()  # the warm-up's losses are not losses of data

    def _example_in(self, source: Any) -> StaticBatch | GraphColumns | None:
        """Returns a batch, or graphs, to prepare with: those of the plan where nothing is given."""
        if isinstance(source, DeviceStore):
            self._steps.store, source = source, source.host
        elif source is not None and not isinstance(source, GraphColumns):
            source = static_of(source) or stored_batch(source, self.schema)
        return graphs_of(self._steps.plan) if source is None else source

    def _check_padding(self, example: StaticBatch | GraphColumns | None) -> None:
        """Checks padding before anything is compiled.

        Without an example it runs on made-up graphs, and the first batch is checked as well, unless
        that is replayed.
        """
        execution = self._execution
        made_up = execution.compiles and not execution.only_fused
        if self.padding is None or (example is None and not made_up):
            return
        device, schema = self._device, self.schema
        batch = example_of(self._steps.plan, schema, example, self._subject.pointers)
        if batch is None:
            return
        phase = "step" if self._subject.trains else "eval"
        self.padding.check_batch(batch.to(device), phase, example is not None)
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def prepare(
        self,
        way: str,
        bucket: int,
        phase: str,
        schema: Schema,
        example: StaticBatch | GraphColumns | None = None,
    ) -> None:
        """Compiles or records a phase of a bucket, under the budget; on all ranks or on none."""
        ranks = self._execution.ranks
        guard, together = nullcontext(), nullcontext() if ranks is None else ranks.together()
        if self.commitments is not None:
            guard = self.commitments.recording(bucket, self.tear_down)
            measures = self.commitments.allocator is not None
            self.warmed = self.commitments.warmed if measures else None
        arguments = way, bucket, phase, schema, example
        with _rarely_collected(), together, guard, self.watched(bucket, phase):
            try:
                self._prepare(*arguments)
            except NotStatic:
                if not self._may_be_old:
                    raise
                self._may_be_old = False  # the model has changed since a warm-up before
                self._steps.compiled.clear()
                self._prepare(*arguments)

    def _commit_gradients(self, phases: Iterable[str]) -> None:
        """Commits, in advance, the gradients of recordings beyond one step per bucket."""
        if self.commitments is None:
            return
        if "step" in phases and self._steps.joins_collation:
            self.commitments.more_gradients(FROM_IDS)
        recorded = self._execution.records and self._steps.records("forward")
        if "forward" in phases and recorded:
            self.commitments.more_gradients(OF_PAIRS)

    def _prepare(
        self,
        way: str,
        bucket: int,
        phase: str,
        schema: Schema,
        example: StaticBatch | GraphColumns | None,
    ) -> None:
        """Compiles, or records, what a phase of a bucket needs; does nothing for ``eager``.

        It runs over graphs of the example, if there is one: a model may divide by their number.

        Raises:
            NotStatic: it cannot be compiled or recorded.
            ValueError: there is no such phase.
        """
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}; choose one of {', '.join(map(repr, PHASES))}")
        if way == "eager":
            return
        steps = self._steps
        work = "step" if phase == "step" else "forward"
        if way == OWN and steps.records(phase):
            if steps.averaging is not None and phase == "step":
                steps.averaging.check_recordable()
            if phase == "forward":
                steps.begin_recording(schema).record_forward(bucket, training=True)
            else:
                steps.begin_recording(schema).record(bucket, work, self.warmed)
            return
        batch = trial_batch(steps.layout(bucket, schema), example, self._device)
        batch = StaticBatch(batch.layout, batch.tensors())  # any counts, as the step is for
        key = (way, bucket, phase)
        if steps.mode.recording and key not in self._recorded_whole:
            with whole_recording(self._device, phase, f"bucket {bucket} {phase}") as graphs:
                self._run_in(way, batch, phase, RECORDING_RUNS)
            steps.compiled.note_recorded(bucket, work, phase != "eval", graphs)
            self._recorded_whole.add(key)
        else:
            self._run_in(way, batch, phase, RECORDING_RUNS if steps.mode.recording else 1)

    def _run_in(self, way: str, batch: StaticBatch, phase: str, runs: int) -> None:
        """Runs a phase of a batch, so that it compiles and, where torch records, is recorded."""
        for turn in range(runs if self.warmed is None else max(runs, 2)):
            if phase == "step":
                # The gradients of a graph that torch recorded are gone when its next run begins.
                self._steps.update.zero_grad()
            if turn == 1 and self.warmed is not None:
                self.warmed()
            result = self._steps.run_phase(phase, batch, way)
            if phase == "step":
                with without_callbacks(self._model, self._subject.optimizer):
                    (result if self._steps.averaging is None else result.total).backward()

    def finish(self) -> None:
        """Ends the preparation: nothing is recorded from now on, and a compilation warns."""
        self._steps.compiled.warmed_up = True
        if self._steps.recorded is not None:
            self._steps.recorded.freeze()

    def tear_down(self) -> None:
        """Frees recordings and compiled functions, torch's graph trees included."""
        self.forget()
        self._steps.close()
        self._steps.compiled.warmed_up = False
        self._steps.compiled.clear()
        self._recorded_whole.clear()
        if self._steps.mode.recording:
            drop_recordings(self._device)


def _schema_of(example: StaticBatch | GraphColumns) -> Schema:
    return example.layout.schema if isinstance(example, StaticBatch) else example.schema
