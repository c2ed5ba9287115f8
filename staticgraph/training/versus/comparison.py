"""Compares plain PyG and this library, in turns, on a model and data.

The problem: the gain depends on the data, the model, the batch size and the machine, so figures
from elsewhere do not apply. The idea: both train here, from the same weights, over the same batches
in the same order, and take turns for about a minute, loading included; the median over turns
decides, and a side wins only if it is faster in most of them. The invariant: only sides that
compute the same are compared, and the report says what could not be compared; a side that cannot
run is listed with its reason and does not affect the others.

Losses can be compared only if a step draws no random numbers; with dropout, two runs of plain PyG
differ just as much. Even without, they slowly drift apart, since rounding occasionally flips a
ReLU, so the tolerance is that of a check's comparison.

This module does not tune the model, and does not use more than one device and process.
"""

from __future__ import annotations

import copy
import datetime
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.check import check
from staticgraph.checking.comparison import Comparer, RunOptions
from staticgraph.checking.outcome import Tolerance, largest_of
from staticgraph.files.versions import STEPS, versions
from staticgraph.plans.choose import plan_buckets
from staticgraph.runner.intake import device_name
from staticgraph.runner.way_choice import choose
from staticgraph.steps.computation.model_arguments import Forward, forward_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.state.training_state import untouched
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.progress import bar
from staticgraph.training.versus.report import SideReport, VersusReport
from staticgraph.training.versus.sides import (
    ON_CPU,
    ON_CUDA,
    Course,
    PlainSide,
    Side,
    StaticSide,
    StepMemory,
    VersusSetting,
    mode_and_kernels,
    reserved_on,
    step_memory,
)

# With fewer rounds, it is not clear which side was faster in most of them.
LEAST_ROUNDS, MOST_ROUNDS = 5, 50
# Steps whose losses are compared. Adam takes a full-size step even for a gradient that is only
# rounding error, so later losses drift: GINE 4x64 on ESOL by 2e-4 after 5 steps, 1e-3 after 10.
COMPARED = 5
COMPILED_PYG = "pyg-compiled"
# The numbers of collating processes that are tried for PyG.
WORKERS = (0, 1, 2)
# The contenders whose steps are traced.
COMPILES = re.compile(r"compiled|fused|default|reduce-overhead|max-autotune|cuda-graph")
# A turn this many times as slow as the trial on one thread is none that others should be
# compared with: the machine is busy.
CRAWL = 10
# Batches that are run to estimate the time per batch; and the most batches per turn.
TRIAL_BATCHES, MOST_BATCHES = 3, 256
# Turns per side that the length of a turn is planned for; more run if they are quicker than
# estimated.
PLANNED_ROUNDS = 8


def take_turns(
    sides: Mapping[str, Callable[[], object]], until: float, progress: Callable[[int], None]
) -> dict[str, list[float]]:
    """Runs every side once per round, and returns the seconds of each turn.

    Args:
        sides: the functions that take a turn, by name.
        until: the time after which only the first :data:`LEAST_ROUNDS` begin.
        progress: called after each turn with the number of turns so far.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() >= until:
            break
        for name in sides if number % 2 == 0 else reversed(list(sides)):
            started = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - started)
            progress(sum(map(len, seconds.values())))
    return seconds


def losses_apart(expected: Tensor, actual: Tensor) -> float:
    """The largest difference between the first losses, ``[batches]``, relative to the largest."""
    first, scale = expected[:COMPARED], largest_of([expected[:COMPARED]])
    off = float((first - actual[:COMPARED]).abs().max()) / scale if len(first) else 0.0
    return off if off == off else float("inf")


def draws_random(side: Side) -> bool:
    """Whether a training step gives a different loss with a different seed."""
    losses = []
    for seed in (1, 2):
        with untouched(side.model, side.optimizer), side.one_step() as step:
            torch.manual_seed(seed)
            losses.append(step().clone())
    rounding = Tolerance.of(torch.float32).same_order
    return not torch.allclose(*losses, rtol=rounding, atol=0.0, equal_nan=True)


def outputs_apart(setting: VersusSetting) -> float | None:
    """The largest difference of the first batch's outputs in evaluation mode, relative to the
    largest; None if the model does not run with fixed shapes, or not in plain PyG."""
    comparer = Comparer(Subject(setting.fresh_model(), forward=setting.forward))
    loader = StaticLoader(
        setting.store, setting.plan, indices=setting.train_ids, shuffle=True, seed=setting.seed
    )
    with closing(iter(loader)) as batches:
        batch = next(batches).clone().to(setting.device)
    parity = comparer.beside_plain(batch, RunOptions(training=False, gradients=False))
    return None if parity is None else parity.worst


@dataclass(eq=False)
class _Entrant:
    """A side of the comparison with its measurements, or the reason why it was dropped."""

    name: str
    make: Callable[[], Any]
    side: Any = None
    refused: str | None = None
    prepare_s: float = 0.0
    batch_s: float = 0.0
    memory: StepMemory | None = None
    threads: int = field(default_factory=torch.get_num_threads)
    one_thread_s: float = 0.0  # per batch; 0 where it was not measured
    losses: Tensor | None = None  # of the first turn

    def attempt(self, what: Callable[[], Any]) -> Any:
        """Calls a function and returns its result; an error drops only this side."""
        if self.refused is not None:
            return None
        try:
            return what()
        except Exception as error:  # whatever a model raises
            self.refused = str(error).strip() or type(error).__name__
            if not isinstance(error, ValueError | RuntimeError | ArithmeticError):
                self.refused = f"{type(error).__name__}: {self.refused}"
            return None

    def turn(self) -> None:
        """Takes a turn, unless the side was dropped."""
        if self.refused is None:
            torch.set_num_threads(self.threads)
            losses = self.attempt(lambda: self.side.turn())
            self.losses = losses if self.losses is None else self.losses


def compare(
    model: torch.nn.Module,
    store: GraphStore,
    *,
    loss: Loss,
    forward: Forward | None = None,
    batch_size: int = 128,
    seconds: float = 60.0,
    modes: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    lr: float = 1e-3,
    seed: int = 0,
    progress: bool = True,
) -> VersusReport:
    """Trains copies of a model with plain PyG and with this library in turns, and compares them.

    Args:
        model: any PyG model; it is not changed.
        store: the graphs; those of its split ``train`` if it has one.
        loss: ``loss(out, batch)``, one value per row, as a runner takes it.
        forward: ``forward(model, batch)``, if the model's parameter names do not determine it.
        batch_size: graphs per batch, on all sides.
        seconds: the approximate total time; compiling may take longer, and each side has a few
            turns in any case.
        modes: modes of the runner, ``default+kernels`` for one with the fused kernels, or
            ``pyg-compiled`` for plain PyG under ``torch.compile(dynamic=True)``; by default on a
            CPU ``eager`` and ``fused``; on CUDA ``eager``, and the modes that compile and record,
            without and with kernels.
        device: the device of all sides.
        lr: learning rate of Adam.
        seed: seed of the order of graphs and of random numbers.
        progress: show a bar.

    Returns:
        The report; it prints as a table, and ``.to_dict()`` is for JSON.

    Raises:
        ValueError: there is no such mode.
        GraphTooLarge: see :func:`staticgraph.plan_buckets`.
    """
    device = torch.device(device)
    names = tuple(modes or (ON_CUDA if device.type == "cuda" else ON_CPU))
    for name in names:
        if name != COMPILED_PYG:
            mode_and_kernels(name)
    trial = _Trial(_setting(model, store, loss, forward, batch_size, device, lr, seed), names)
    try:
        return trial.run(time.perf_counter() + seconds, progress)
    finally:
        torch.set_num_threads(trial.threads)


def _setting(
    model: torch.nn.Module,
    store: GraphStore,
    loss: Loss,
    forward: Forward | None,
    batch_size: int,
    *rest: Any,
) -> VersusSetting:
    """The setting of a comparison; ``rest`` are device, learning rate and seed."""
    ids = np.asarray(store.splits.get("train", ()))
    ids = ids if len(ids) else np.arange(len(store))
    batch_size = min(batch_size, len(ids))
    plan = plan_buckets(store, batch_size, indices=ids)
    stock = copy.deepcopy(model).cpu()
    forward = forward or forward_of(stock)
    return VersusSetting(stock, store, plan, loss, forward, ids, batch_size, *rest)


class _Trial:
    """One comparison, from the first trial batches to the report."""

    def __init__(self, setting: VersusSetting, names: Sequence[str]) -> None:
        self.setting = setting
        self.plain = _Entrant("PyG", partial(PlainSide, setting))
        self.entrants = [self.plain] + [
            _Entrant("PyG, compiled", partial(PlainSide, setting, True))
            if name == COMPILED_PYG
            else _Entrant(name, partial(StaticSide, setting, name))
            for name in names
        ]
        self.threads = torch.get_num_threads()
        self.random = False
        self.apart: float | None = None

    def run(self, until: float, progress: bool) -> VersusReport:
        """Runs the comparison and returns its report; torch's threads are as the last side's."""
        started, trial = time.perf_counter(), self.setting.course(TRIAL_BATCHES)
        with bar(self.entrants, desc="preparing", unit=" contenders", show=progress) as shown:
            for entrant in shown:
                shown.set_postfix_str(entrant.name)
                entrant.attempt(partial(self._prepare, entrant, trial))
        course = self._course(until - time.perf_counter())
        for entrant in self.entrants:
            entrant.attempt(lambda entrant=entrant: entrant.side.begin(course))
        self._look()
        times = self._take_turns(until, progress)
        report = self._report(course, times, time.perf_counter() - started)
        for entrant in self.entrants:
            if entrant.side is not None:
                entrant.side.close()
        return report

    @property
    def _left(self) -> list[_Entrant]:
        return [entrant for entrant in self.entrants if entrant.refused is None]

    def _prepare(self, entrant: _Entrant, trial: Course) -> None:
        """Prepares a side, and measures its time per batch and its memory."""
        device = self.setting.device
        torch.manual_seed(self.setting.seed)
        # A traced step is of one number of threads: PyG's, which is prepared first.
        compiles = COMPILES.search(entrant.name) is not None
        torch.set_num_threads(self.plain.threads if compiles else self.threads)
        before = reserved_on(device)
        started = time.perf_counter()
        entrant.side = side = entrant.make()
        side.prepare()
        entrant.prepare_s = time.perf_counter() - started
        side.begin(trial)
        with untouched(side.model, side.optimizer):
            side.turn()
            turn_s = {torch.get_num_threads(): _seconds(side)}
            if device.type == "cpu" and not compiles and 1 not in turn_s:
                torch.set_num_threads(1)
                turn_s[1] = _seconds(side)
        entrant.threads = min(turn_s, key=lambda threads: turn_s[threads])
        entrant.batch_s = turn_s[entrant.threads] / len(trial.order)
        entrant.one_thread_s = turn_s.get(1, 0.0) / len(trial.order)
        entrant.memory = step_memory(side, device, before)

    def _course(self, left_s: float) -> Course:
        """A course whose length lets the planned rounds fill the remaining time."""
        setting = self.setting
        a_round = sum(entrant.batch_s for entrant in self._left)
        searching = 2 * len(WORKERS) * self.plain.batch_s if self.plain.refused is None else 0.0
        batches = left_s / max(1e-9, PLANNED_ROUNDS * a_round + searching)
        full = max(1, len(setting.train_ids) // setting.batch_size)
        return setting.course(max(1, min(MOST_BATCHES, full, int(batches))))

    def _look(self) -> None:
        """Compares the outputs before training, checks whether a step draws random numbers, and
        chooses PyG's number of workers."""
        if self._left:  # plain PyG, or the first side that is left
            first = self._left[0]
            self.random = bool(first.attempt(lambda: draws_random(first.side)))
        if self.plain in self._left:
            try:
                self.apart = outputs_apart(self.setting)
            except Exception:  # the model cannot run with fixed shapes: its modes report why
                self.apart = None
            self.plain.attempt(lambda: _choose_workers(self.plain.side))

    def _take_turns(self, until: float, progress: bool) -> dict[str, list[float]]:
        for entrant in self._left:
            torch.manual_seed(self.setting.seed)
            entrant.turn()  # untimed; its losses are compared
        turns = {entrant.name: entrant.turn for entrant in self._left}
        begun = time.perf_counter()
        length = max(1, round(until - begun))
        with bar(total=length, desc="taking turns", unit=" s", show=progress) as shown:
            shown_s = 0

            def show_turn(done: int) -> None:
                """Shows the turn, and advances the bar by whole seconds."""
                nonlocal shown_s
                now = min(length, int(time.perf_counter() - begun))
                shown.set_postfix_str(f"turn {done}")
                shown.update(now - shown_s)
                shown_s = now

            times = take_turns(turns, until, show_turn) if turns else {}
        return {e.name: times[e.name] for e in self._left}

    # ------------------------------------------------------------------ reporting

    def _report(
        self, course: Course, times: dict[str, list[float]], seconds: float
    ) -> VersusReport:
        setting = self.setting
        first = next(iter(times), "")
        sides = tuple(self._side(entrant, course, times, first) for entrant in self.entrants)
        other = {side.name for side in sides if side.equal is False}
        alike = {
            name: [1e3 * s for s in turn_s] for name, turn_s in times.items() if name not in other
        }
        won = choose(0, "step", alike) if alike else None
        return VersusReport(
            model=type(setting.model).__name__,
            data=setting.store.name,
            graphs=course.num_graphs,
            batch_size=setting.batch_size,
            capacities=tuple(map(str, setting.plan.capacities)),
            device=device_name(setting.device),
            versions=versions(STEPS),
            date=datetime.date.today().isoformat(),
            seconds=seconds,
            sides=sides,
            workers=getattr(self.plain.side, "workers", 0),
            random=self.random,
            outputs_apart=self.apart,
            winner="" if won is None else won.way,
            reason="" if won is None or won.way == first else won.reason,
            compared_with=first,
            obstacles=self._obstacles(),
        )

    def _side(
        self, entrant: _Entrant, course: Course, times: dict[str, list[float]], first: str
    ) -> SideReport:
        name = entrant.name
        if name not in times or entrant.losses is None:
            return SideReport(name, refused=entrant.refused or "it took no turn")
        turn_s = np.array(times[name])
        rates = np.percentile(course.num_graphs / turn_s, [50, 10, 90])
        ratios = np.percentile(np.array(times[first]) / turn_s, [50, 10, 90])
        apart = None
        if not self.random and name != first:
            expected = next(each.losses for each in self.entrants if each.name == first)
            apart = None if expected is None else losses_apart(expected, entrant.losses)
        limit_s = CRAWL * entrant.one_thread_s * len(course.order)
        return SideReport(
            name,
            *map(float, (*rates, *ratios)),
            turns=len(turn_s),
            prepare_s=entrant.prepare_s,
            memory=entrant.memory,
            filling=entrant.side.filling(),
            threads=entrant.threads,
            crawls=bool(limit_s and float(np.median(turn_s)) > limit_s),
            losses=tuple(entrant.losses.tolist()),
            losses_apart=apart,
        )

    def _obstacles(self) -> tuple[dict[str, Any], ...]:
        """The check's obstacles for a model that any mode of this library refused."""
        if not any(e.refused and not e.name.startswith("PyG") for e in self.entrants):
            return ()
        setting = self.setting
        try:
            checked = check(
                setting.fresh_model(), setting.plan, setting.store, forward=setting.forward
            )
        except Exception:  # a model that does not run at all: each side has the reason
            return ()
        return tuple(checked.to_dict()["obstacles"])


def _seconds(side: Any) -> float:
    started = time.perf_counter()
    side.turn()
    return time.perf_counter() - started


def _choose_workers(side: PlainSide) -> None:
    """Sets the fastest number of workers; the state of the training is restored."""
    turn_s: dict[int, float] = {}
    for workers in WORKERS:
        with untouched(side.model, side.optimizer):
            side.take_workers(workers)
            side.turn()
            turn_s[workers] = _seconds(side)
    side.take_workers(min(turn_s, key=lambda workers: turn_s[workers]))
