"""Measures the ways a bucket may run in, before its first step, and chooses the fastest.

Every way that can run is compiled or recorded; then all of them step in turn (A B C A B C ...) over
a batch of the bucket, whole training steps included. CUDA is timed by device events, a CPU by wall
time, as the steps of the report are. One eager step without rows tells how full a batch must be for
the faster way to pay (:func:`staticgraph.runner.way_choice.least_fill`). The caller restores the
training state, so that training afterwards is the same as without the measurement.

Over padding alone an eager step of a CPU does other work than over graphs. Without graphs the ways
are prepared, and timed with the first batch of their bucket (:attr:`Trials.waiting`).

Invariants: nothing is compiled or recorded later; a way that cannot run is dropped with its reason
and costs the others nothing; no way is started after ``limit_s``, or where it could not earn its
preparation back in the steps that are to come, and the bucket then takes the simplest one. A
compilation in progress is not cut short.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.padding.padder import unplanned_layout
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.files import jit_cache
from staticgraph.probing.out_of_memory import is_out_of_memory
from staticgraph.runner.steps import Steps
from staticgraph.runner.way_choice import (
    NOT_TRIED,
    WayChoice,
    choose,
    least_fill,
    load,
    save,
    settled,
)
from staticgraph.runner.ways import LEAST_ROUNDS, Auto, SharedStopwatch
from staticgraph.schema import Schema
from staticgraph.steps.compilation.modes import FUSED, OWN, without_fused
from staticgraph.steps.state.training_hooks import without_callbacks
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Bar

# Not timed: allocating workspaces, autotuning and first memory accesses belong to no one way.
UNTIMED_ROUNDS = 2
# Seconds that preparing a way takes, until one has been prepared: GINE and GPS of a few layers, one
# core, 2026-11-24 (torch's own imports, 1.5 s, in the first), where numba has compiled kernels on
# this machine before; otherwise, and for Inductor, two cores, 2026-11-20 and 2026-11-28.
REWRITING_S, COMPILATION_S = 2.0, 20.0
# The largest share of an eager step that another way is expected to save.
MOST_SAVED = 0.6


class Trials:
    """The measurements of one warm-up.

    Args:
        steps: the ways to run; their model's flags are set for each phase.
        options: see :class:`staticgraph.runner.ways.Auto`.
        prepare: ``prepare(way, bucket, phase)`` compiles or records, under the runner's budget.
        steps_to_come: how many steps a bucket will run; None where that is not known.
        waits: whether a bucket without graphs waits for its first batch.

    Attributes:
        notes: what had to be given up for a way to run.
        waiting: the ways that are ready, by the keys that wait for a batch with graphs.
    """

    def __init__(
        self,
        steps: Steps,
        options: Auto,
        prepare: Callable[[str, int, str], None],
        steps_to_come: int | None = None,
        waits: bool = False,
    ) -> None:
        self.notes: list[str] = []
        self.waiting: dict[tuple[int, str], list[str]] = {}
        self._steps_to_come, self._waits = steps_to_come, waits
        self._took_s: dict[str, float] = {}
        self._steps, subject = steps, steps.subject
        self._model, self._optimizer = subject.model, subject.optimizer
        self._without_fused = without_fused()
        self._options = options
        self._prepare = prepare
        stopwatch, ranks = options.stopwatch(subject.device), steps.ranks
        self._stopwatch = stopwatch if ranks is None else SharedStopwatch(stopwatch, ranks)
        self._device_type = subject.device.type
        self._until = self._stopwatch.now() + options.limit_s
        self._times: dict[tuple[int, str], dict[str, list[float]]] = {}
        self._refused: dict[tuple[int, str], dict[str, str]] = {}
        self._empty_ms: dict[tuple[int, str], float] = {}
        # Why a way is out for every phase: recordings were torn down, or the model counts its
        # steps, which an evaluation reads as well.
        self._lost: dict[str, str] = {}

    def run(
        self,
        keys: Sequence[tuple[int, str]],
        schema: Schema,
        batch_of: Callable[[SlotLayout], StaticBatch],
        file: str | Path | None,
        shown: Bar,
    ) -> tuple[WayChoice, ...]:
        """Prepares the chosen way of every key, chosen by a file or by measuring.

        Args:
            keys: (bucket, phase), largest bucket first.
            schema: the fields of the batches.
            batch_of: returns a batch to time a bucket with.
            file: choices are read from it if it fits, and written to it otherwise.
            shown: the progress bar, updated for each key that is ready.
        """
        if OWN in self._options.ways:
            self.notes += self._steps.fit_scope()
        made_for = _fingerprint(self._steps)
        choices = None if file is None else _fixed(file, keys, made_for)
        ranks = self._steps.ranks
        if ranks is not None and not ranks.all(choices is not None):
            choices = None  # a rank without the file would measure alone
        if choices is not None:
            for choice in sorted(choices, key=lambda choice: choice.bucket, reverse=True):
                shown.set_postfix_str(f"bucket {choice.bucket} {choice.phase}")
                self._prepare(choice.way, choice.bucket, choice.phase)
                shown.update()
        else:
            for bucket, phase in keys:
                shown.set_postfix_str(f"bucket {bucket} {phase}")
                self.measure(batch_of(self._steps.layout(bucket, schema)), phase)
                shown.update()
            choices = self.choices()
            if all(choice.way != OWN for choice in choices):
                self._steps.close()
            if file is not None and not self.waiting and (ranks is None or ranks.first):
                save(file, choices, made_for)
        return self._use(choices)

    def _use(self, choices: Sequence[WayChoice]) -> tuple[WayChoice, ...]:
        """Makes every key run in its chosen way from now on."""
        self._steps.choose({(choice.bucket, choice.phase): choice.way for choice in choices})
        return tuple(choices)

    def measure(self, batch: StaticBatch, phase: str) -> None:
        """Prepares and times every way for one phase of a batch's bucket."""
        key = (batch.bucket, phase)
        refused = self._refused[key] = {}
        ready = []
        eager_ms = 0.0
        if batch.device.type == "cpu":
            # An error of the model itself should appear alone, before a compiler meets it and adds
            # a page of its own.
            self._prepare("eager", *key)
            with self._steps.finite.unread():
                self._run("eager", batch, phase)
        if self._steps_to_come is not None:
            with self._steps.finite.unread():
                eager_ms = self._stopwatch.milliseconds(
                    "eager", lambda: self._run("eager", batch, phase)
                )
        for way in self._options.ways:
            why = self._too_few_steps(way, eager_ms) or self._cannot(way, batch.bucket, phase)
            if why is None:
                ready.append(way)
            else:
                refused[way] = why
        if self._waits and batch.real is None and len(ready) > 1:
            self.waiting[key] = ready
        else:
            self.time(batch, phase, ready)

    def time(self, batch: StaticBatch, phase: str, ready: Sequence[str]) -> None:
        """Times ways that are prepared, for one phase of a batch's bucket."""
        key = (batch.bucket, phase)
        # A loss that diverges over one repeated batch does not mean that the data are faulty.
        with self._steps.finite.unread():
            self._times[key] = self._timed(
                ready, lambda way: self._run(way, batch, phase), self._refused[key]
            )
            # Other ranks do not wait for a batch of another size.
            if phase == "step" and len(ready) > 1 and batch.real and self._steps.ranks is None:
                with suppress(Exception):  # a model need not run without rows: edge_index.max()
                    self._empty_ms[key] = self._measure_empty(batch, batch.real.extra, phase)

    def _measure_empty(
        self, batch: StaticBatch, extra: tuple[tuple[str, int], ...], phase: str
    ) -> float:
        """Returns the milliseconds of an eager step without rows."""
        none = RealCounts(0, 0, 0, 0, tuple((name, 0) for name, _ in extra))
        layout = unplanned_layout(none, batch.capacity, batch.layout.schema)
        blank = StaticBatch.blank(layout, batch.device)
        times = self._timed(["eager"], lambda way: self._run(way, blank, phase), {})
        return float(np.median(times["eager"]))

    def _too_few_steps(self, way: str, eager_ms: float) -> str | None:
        """Returns why a way is not worth its preparation; None where it may be, or is unknown."""
        if way == "eager" or self._steps_to_come is None or not eager_ms:
            return None
        rewriting = way == FUSED and (self._device_type != "cpu" or jit_cache.holds_kernels())
        cost_s = self._took_s.get(way, REWRITING_S if rewriting else COMPILATION_S)
        if 1e-3 * eager_ms * self._steps_to_come * MOST_SAVED >= cost_s:
            return None
        steps = how_many(self._steps_to_come, "step")
        return f"{NOT_TRIED}: {steps} of {eager_ms:.3g} ms cannot earn back {cost_s:.2g} s"

    def finish(self, batch: StaticBatch, phase: str) -> tuple[WayChoice, ...]:
        """Times the ways of a key that waits, with its first batch, and chooses one.

        Returns:
            All choices so far.
        """
        self.time(batch, phase, self.waiting.pop((batch.bucket, phase)))
        return self._use(self.choices())

    def choices(self) -> list[WayChoice]:
        """Returns the choice for each measured key, smallest bucket first.

        Recordings are freed together, so if one failed, none is chosen. A way that would compile a
        step again is not chosen for evaluation either.
        """
        choices = []
        for key in sorted(self._times):
            times, refused = dict(self._times[key]), dict(self._refused[key])
            for way in self._lost.keys() & times.keys():
                del times[way]
                refused[way] = self._lost[way]
            choice = choose(*key, times, refused)
            if key in self._empty_ms:
                choice = replace(choice, least_fill=least_fill(choice, self._empty_ms[key]))
            choices.append(choice)
        if self._device_type != "cpu" or self._steps.ranks is not None:
            return choices
        # Nothing is gained by rows of padding where every phase runs in eager anyway.
        other = {choice.bucket for choice in choices if choice.way != "eager"}
        return [
            choice
            if choice.phase != "step" or choice.bucket in other
            else replace(choice, least_fill=1.0)
            for choice in choices
        ]

    def _cannot(self, way: str, bucket: int, phase: str) -> str | None:
        """Prepares a way; returns the reason if it cannot run."""
        if way != "eager" and self._stopwatch.now() > self._until:
            return f"{NOT_TRIED}: limit_s={self._options.limit_s:g} was spent"
        if way in self._lost:
            return self._lost[way]
        if way == OWN and not self._steps.records(phase):
            return f"scope {self._steps.recording.scope!r} does not record {phase!r}"
        if way == FUSED and self._without_fused:
            return self._without_fused
        started = self._stopwatch.now()
        try:
            self._prepare(way, bucket, phase)
            self._took_s[way] = self._stopwatch.now() - started
        except NotStatic as error:
            if way == OWN:
                self._lost[OWN] = f"all recordings were torn down: {error}"
                self._steps.close()
            return str(error)
        except Exception as error:
            # The model itself ran in eager, so a failure of the compiler, or of its graph, should
            # not end a run that can do without that way.
            if way in ("eager", OWN):
                raise
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None

    def _timed(
        self, ways: Sequence[str], run: Callable[[str], Any], refused: dict[str, str]
    ) -> dict[str, list[float]]:
        """Returns the milliseconds of each way, round by round.

        A way that runs out of memory, or whose second step would be compiled again since the model
        counts its steps, is refused, except the first, which must run.
        """
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(UNTIMED_ROUNDS + self._options.rounds):
            for way in list(times):
                try:
                    elapsed = self._stopwatch.milliseconds(way, lambda w=way: run(w))
                except Exception as error:
                    if way == ways[0] or not (is_out_of_memory(error) or type(error) is NotStatic):
                        raise
                    if is_out_of_memory(error):
                        refused[way] = f"ran out of memory: {error}"
                    else:
                        self._lost[way] = refused[way] = str(error)
                    del times[way]
                    continue
                if turn >= UNTIMED_ROUNDS:
                    times[way].append(elapsed)
            timed = turn + 1 - UNTIMED_ROUNDS
            if timed >= LEAST_ROUNDS and (settled(times) or self._stopwatch.now() > self._until):
                break
        return times

    def _run(self, way: str, batch: StaticBatch, phase: str) -> None:
        if phase == "step":
            with without_callbacks(self._model, self._optimizer):
                self._steps.train(batch, way)
        else:
            self._steps.run_phase(phase, batch, way)


def _fingerprint(steps: Steps) -> dict[str, Any]:
    """What a choice among the ways depends on, as values that survive JSON."""
    subject, device = steps.subject, steps.subject.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "model": type(subject.model).__name__,
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "optimizer": type(subject.optimizer).__name__,
        "autocast": subject.precision,
        "capacities": [str(capacity) for capacity in steps.plan.capacities],
    }


def _fixed(
    file: str | Path, keys: Sequence[tuple[int, str]], made_for: Mapping[str, Any]
) -> list[WayChoice] | None:
    """Returns the choices of a file, or None unless it holds all that are needed."""
    if not Path(file).exists():
        return None
    try:
        choices = load(file, made_for)
    except ValueError as error:
        warnings.warn(f"{error}; measuring again and replacing it", stacklevel=4)
        return None
    return choices if {(choice.bucket, choice.phase) for choice in choices} >= set(keys) else None


def trial_batch(layout: SlotLayout, example: Any, device: torch.device) -> StaticBatch:
    """Returns a batch to time a bucket with.

    This is the first graphs of a store that fit, the smallest where only one of the first does,
    since a norm over graphs needs two; the example itself if it is a batch of this bucket; or
    padding alone if there is no data.
    """
    capacity = layout.capacity
    place = layout.bucket, capacity
    if isinstance(example, StaticBatch) and (example.bucket, example.capacity) == place:
        batch = with_pointers(example) if layout.pointers else example.without_pointers()
        return batch.clone().to(device)
    if isinstance(example, GraphColumns):
        limits = np.array(capacity.size_limits)
        sizes = example.sizes[:, : len(limits)]
        fit = np.flatnonzero((sizes <= limits).all(1) & (sizes[:, 0] <= capacity.max_graph_nodes))
        ids = fit[:0]
        for order in (fit, fit[sizes[fit, 0].argsort(kind="stable")]):
            if len(ids) < 2:
                used = np.cumsum(sizes[order[: capacity.graph_limit]], axis=0)
                ids = order[: int((used <= limits).all(1).sum())]
        if len(ids):
            batch = StaticBatch.of(example, ids, capacity, layout.bucket, layout.pointers)
            return batch.to(device)
    return StaticBatch.blank(layout, device)
