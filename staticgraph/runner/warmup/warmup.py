"""The warm-up: every bucket and phase is compiled, and recorded, before the first step.

The problem: a late compilation costs a minute in the middle of an epoch, and a late recording finds
the memory taken. Here all keys are prepared at once, largest first, under the budget, and model,
optimizer and random state are restored afterwards; ``auto`` times its ways at the same time. The
effect of padding on the model is checked first, since a model that padding reaches need not be
compiled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.example_batch import example_of
from staticgraph.checking.padding_check import PaddingCheck
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.execution.commitments import Commitments
from staticgraph.runner.execution.data_fields import DataFields
from staticgraph.runner.execution.execution import Execution
from staticgraph.runner.execution.steps import Steps
from staticgraph.runner.timing.way_choice import WayChoice
from staticgraph.runner.warmup import compile_cache
from staticgraph.runner.warmup.first_steps import FirstSteps
from staticgraph.runner.warmup.preparation import Preparation
from staticgraph.runner.warmup.trials import Trials, trial_batch
from staticgraph.schema import Schema
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import untouched
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import bar


class Warming:
    """Prepares everything a runner runs, and keeps what it found on the way.

    Attributes:
        choices: what ``auto`` chose.
        notes: remarks of its trials, for the report.
        seconds: duration of the last warm-up; None before the first.
        cold_s: duration of the warm-up that wrote the cache used by the last one; None without.
        waits: whether a bucket's way is still to be chosen, with its first batch.
    """

    def __init__(
        self,
        subject: Subject,
        plan: BucketPlan,
        execution: Execution,
        steps: Steps,
        preparation: Preparation,
        commitments: Commitments | None,
        padding: PaddingCheck | None,
        fields: DataFields,
        first_steps: FirstSteps,
    ) -> None:
        self.choices: tuple[WayChoice, ...] = ()
        self.notes: list[str] = []
        self.seconds: float | None = None
        self.cold_s: float | None = None
        self._subject, self._plan, self._execution = subject, plan, execution
        self._steps, self._preparation, self._commitments = steps, preparation, commitments
        self._padding, self._fields = padding, fields
        self._first_steps = first_steps
        self.waits: bool = False
        self._trials: Trials | None = None

    def run(
        self,
        given: StaticBatch | GraphStore | DeviceStore | None,
        phases: Iterable[str] | None,
        progress: bool,
        cache: str | Path | bool | None,
        choices: str | Path | None,
        steps_to_come: int | None = None,
    ) -> None:
        """Prepares every bucket in every phase; see :meth:`StaticGraphRunner.warmup`."""
        example: StaticBatch | GraphColumns | None
        if isinstance(given, DeviceStore):
            self._steps.recordings.store, example = given, given.host
        else:
            example = given
        if example is not None:
            self._fields.learn(example)
        elif isinstance(planned := self._plan.source(), GraphColumns):
            example = planned
        self._check_padding(example)
        execution = self._execution
        if not execution.compiles or (self._fields.schema is None and execution.only_fused):
            return
        schema = self._fields.of(None, "warmup(example=store) or a batch")
        if phases is None:
            phases = ("step", "eval") if self._subject.trains else ("eval",)
        self._prepare_all(schema, example, tuple(phases), progress, cache, choices, steps_to_come)

    def choose_on(self, batch: StaticBatch, work: str) -> StaticBatch:
        """Chooses how a batch's bucket runs, if that waits for a batch with graphs.

        Returns:
            The batch, as the steps take it from now on.
        """
        trials, key = self._trials, (batch.bucket, self._steps.phase(work))
        if trials is None or key not in trials.waiting or not batch.real:
            return batch
        subject, form = self._subject, self._steps.form
        form.fused = True  # until the choice, batches carry what every way reads
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            untouched(subject.model, subject.optimizer, beside=subject.functions),
            self._steps.accumulated.kept(),
        ):
            self.choices = trials.finish(form.accept(batch), key[1])
        self.waits = bool(trials.waiting)
        return form.accept(batch)

    def _check_padding(self, example: StaticBatch | GraphColumns | None) -> None:
        """Checks padding before anything is compiled.

        Without an example it runs on made-up graphs, and the first batch is checked as well, unless
        that is replayed.
        """
        execution = self._execution
        made_up = execution.compiles and not execution.only_fused
        if self._padding is None or (example is None and not made_up):
            return
        device, schema = self._subject.device, self._fields.schema
        batch = example_of(self._plan, schema, example, self._subject.pointers)
        if batch is None:
            return
        phase = "step" if self._subject.trains else "eval"
        self._padding.of(batch.to(device), phase, example is not None)
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def _prepare_all(
        self,
        schema: Schema,
        example: StaticBatch | GraphColumns | None,
        phases: tuple[str, ...],
        progress: bool,
        cache: str | Path | bool | None,
        choices: str | Path | None,
        steps_to_come: int | None,
    ) -> None:
        # Largest first: later, smaller recordings fit into the memory of earlier ones.
        keys = [(b, p) for b in reversed(range(len(self._plan.capacities))) for p in phases]
        device, auto = self._subject.device, self._execution.auto
        if isinstance(cache, bool):
            name = self._execution.mode.name
            what = (self._subject.model, self._plan.capacities, schema, name, device)
            cache = compile_cache.default_path(*what) if cache else None
        started = time.perf_counter()
        self.cold_s = None if cache is None else compile_cache.load(cache, device)
        self._steps.recordings.close()
        self._steps.compiled.warmed_up = False  # what a second warm-up compiles is not late
        self._commit_gradients(phases)
        prepare, subject = partial(self.prepare, schema), self._subject
        with (
            untouched(subject.model, subject.optimizer, beside=subject.functions),
            self._steps.accumulated.kept(),
            bar(keys, desc="warming up", unit="", show=progress) as shown,
        ):
            if auto is None:
                for bucket, phase in shown:
                    shown.set_postfix_str(f"bucket {bucket} {phase}")
                    prepare(self._steps.mode.name, bucket, phase)
            else:
                # Several ranks need not meet a bucket in the same step, so none of them waits.
                waits = self._execution.only_fused and self._execution.ranks is None
                trials = Trials(self._subject, self._steps, auto, prepare, steps_to_come, waits)
                self._trials = trials
                file = f"{cache}.choices.json" if choices is None and cache else choices
                batches = partial(trial_batch, example=example, device=device)
                self.choices = trials.run(keys, schema, batches, file, shown)
                self.notes, self.waits = trials.notes, bool(trials.waiting)
            unbound = self._commitments is None  # a budget holds no eager step beside these
            if unbound and self._padding is not None and example is not None and "step" in phases:
                self._compare(schema, example, progress)
        self.seconds = time.perf_counter() - started
        if cache is not None:
            compile_cache.save(cache, device, self.seconds if self.cold_s is None else self.cold_s)
        self._preparation.finish()
        self._steps.clear()  # the warm-up's losses are not losses of data

    def _compare(self, schema: Schema, example: StaticBatch | GraphColumns, progress: bool) -> None:
        """Compares the first step of every bucket with eager, and prints what it cost."""
        steps, first = self._steps, self._first_steps
        first.buckets.clear()
        first.seconds = 0.0
        for bucket in range(len(self._plan.capacities)):
            batch = trial_batch(steps.form.layout(bucket, schema), example, self._subject.device)
            first.compare(batch)
        if progress and first.buckets:
            text = f"{how_many(len(first.buckets), 'bucket')} compared with eager"
            print(f"{text} in {first.seconds:.1f} s", file=sys.stderr)

    def prepare(self, schema: Schema, way: str, bucket: int, phase: str) -> None:
        """Compiles or records a phase of a bucket, under the budget; on all ranks or on none."""
        ranks = self._execution.ranks
        guard, together = nullcontext(), nullcontext() if ranks is None else ranks.together()
        if self._commitments is not None:
            guard = self._commitments.recording(bucket, self._preparation.tear_down)
            measures = self._commitments.allocator is not None
            self._preparation.warmed = self._commitments.warmed if measures else None
        with together, guard, self._preparation.watched(bucket, phase):
            self._preparation.prepare(way, bucket, phase, schema)

    def _commit_gradients(self, phases: Iterable[str]) -> None:
        """Commits, in advance, the gradients of recordings beyond one step per bucket."""
        if self._commitments is None:
            return
        buckets = len(self._plan.capacities)
        if "step" in phases and self._steps.recordings.joins_collation:
            self._commitments.steps_from_ids(buckets)
        own = self._execution.records and self._steps.recordings.records("forward")
        if "forward" in phases and own:
            self._commitments.pairs(buckets)
