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

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import torch

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.check import check
from staticgraph.checking.comparison import Comparer, RunOptions, attempt
from staticgraph.checking.plain_batch import plain_batch
from staticgraph.files.versions import STEPS, versions
from staticgraph.runner.counters import device_name
from staticgraph.runner.way_choice import choose
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.tracing.obstacles import Obstacle
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.progress import bar
from staticgraph.training.versus.report import VersusReport
from staticgraph.training.versus.sides import (
    COMPILED,
    ON_CPU,
    ON_CUDA,
    PlainSide,
    Side,
    StaticSide,
    VersusSetting,
    seconds_of,
)

# With fewer rounds, it is not clear which side was faster in most of them.
LEAST_ROUNDS, MOST_ROUNDS = 5, 50
# Steps whose losses are compared. Adam takes a full-size step even for a gradient that is only
# rounding error, so later losses drift: GINE 4x64 on ESOL by 2e-4 after 5 steps, 1e-3 after 10.
COMPARED = 5
COMPILED_PYG = "pyg-compiled"
# The numbers of collating processes that are tried for PyG.
WORKERS = (0, 1, 2)
# The contenders whose steps are not traced, or only if that is faster.
NOT_TRACED = ("PyG", "eager", "auto")
# A turn this many times as slow as the trial on one thread is none that others should be
# compared with: the machine is busy.
CRAWL = 10
# Batches that are run to estimate the time per batch; and the most batches per turn.
TRIAL_BATCHES, MOST_BATCHES = 3, 256
# Turns per side that the length of a turn is planned for; more run if they are quicker than
# estimated.
PLANNED_ROUNDS = 8


def take_turns(
    sides: Mapping[str, Callable[[], object]], until: float, progress: Callable[[], object]
) -> dict[str, list[float]]:
    """Runs every side once per round, and returns the seconds of each turn.

    Args:
        sides: the functions that take a turn, by name.
        until: the time after which only the first :data:`LEAST_ROUNDS` begin.
        progress: called after each turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() >= until:
            break
        for name in sides if number % 2 == 0 else reversed(list(sides)):
            seconds[name].append(seconds_of(sides[name]))
            progress()
    return seconds


def losses_apart(expected: Sequence[float], actual: Sequence[float]) -> float:
    """The largest difference between the first losses, relative to the largest."""
    first, second = (np.array(losses[:COMPARED]) for losses in (expected, actual))
    apart = float(np.abs(first - second).max(initial=0) / max(1e-6, np.abs(first).max(initial=0)))
    return apart if np.isfinite(apart) else float("inf")


def compare_outputs(setting: VersusSetting) -> tuple[float | None, bool]:
    """Compares the first batch's outputs in evaluation mode with those of plain PyG.

    Returns:
        Their largest difference, relative to the largest; None if the model does not run with fixed
        shapes, or not in plain PyG. And whether a training step draws random numbers.
    """
    comparer = Comparer(Subject(setting.fresh_model(), setting.loss, forward=setting.forward))
    loader = StaticLoader(
        setting.store, setting.plan, indices=setting.train_ids, shuffle=True, seed=setting.seed
    )
    with closing(iter(loader)) as batches:
        batch = next(batches).clone().to(setting.device)
    parity = comparer.beside_plain(batch, RunOptions(training=False, gradients=False))
    training = RunOptions(training=True, gradients=True)
    attempt(lambda: comparer.plain(batch, plain_batch(batch), training))
    return None if parity is None else parity.worst, comparer.draws


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
    threads, started = torch.get_num_threads(), time.perf_counter()
    setting = VersusSetting(model, store, loss, forward, batch_size, device, lr, seed)
    plain = PlainSide(setting)
    sides: list[Side] = [plain]
    for name in modes or (ON_CUDA if setting.device.type == "cuda" else ON_CPU):
        compiled = name == COMPILED_PYG
        sides.append(PlainSide(setting, COMPILED) if compiled else StaticSide(setting, name))
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        for side in sides:
            stack.callback(side.close)
        trial = setting.course(TRIAL_BATCHES)
        with bar(sides, desc="preparing", unit=" contenders", show=progress) as shown:
            for side in shown:
                shown.set_postfix_str(side.name)
                traced = side.name not in NOT_TRACED
                number = plain.report.threads if traced else threads
                side.attempt(side.measure, trial, number, traced)
        left = [side for side in sides if side.report.refused is None]
        course = setting.course(_length(setting, left, started + seconds - time.perf_counter()))
        for side in left:
            side.attempt(side.begin, course)
        outputs, random = attempt(partial(compare_outputs, setting)) or (None, False)
        plain.attempt(plain.choose_workers, WORKERS)
        for side in left:
            torch.manual_seed(seed)
            side.take_turn()  # untimed; its losses are compared
        turns = {side.name: side.take_turn for side in left if side.report.refused is None}
        with bar(desc="taking turns", unit=" turns", show=progress) as shown:
            times = take_turns(turns, started + seconds, shown.update) if turns else {}
        ran = [side for side in left if side.name in times and side.report.refused is None]
        graphs = sum(map(len, course))
        for side in ran:
            first_s, turn_s = (np.array(times[each.name]) for each in (ran[0], side))
            report, rounds = side.report, [graphs / turn_s, first_s / turn_s]
            rate, ratio = np.percentile(rounds, [50, 10, 90], axis=1).T.tolist()
            report.graphs_per_s, report.graphs_per_s_low, report.graphs_per_s_high = rate
            report.ratio, report.ratio_low, report.ratio_high = ratio
            report.turns, report.filling = len(turn_s), side.filling()
            slow_s = CRAWL * side.one_thread_s * len(course)
            report.crawls = 0 < slow_s < float(np.median(turn_s))
            if side is not ran[0] and not random:
                report.losses_apart = losses_apart(ran[0].report.losses, report.losses)
        alike = {s.name: times[s.name] for s in ran if s.report.equal is not False}
        won = choose(0, "step", alike) if alike else None
        first = ran[0].name if ran else ""
        return VersusReport(
            model=type(model).__name__,
            data=store.name,
            graphs=graphs,
            batch_size=setting.batch_size,
            capacities=tuple(map(str, setting.plan.capacities)),
            device=device_name(setting.device),
            versions=versions(STEPS),
            date=datetime.date.today().isoformat(),
            seconds=time.perf_counter() - started,
            sides=tuple(side.report for side in sides),
            workers=plain.workers,
            random=random,
            outputs_apart=outputs,
            winner="" if won is None else won.way,
            reason="" if won is None or won.way == first else won.reason,
            compared_with=first,
            obstacles=_obstacles(setting, sides),
        )


def _length(setting: VersusSetting, left: Sequence[Side], left_s: float) -> int:
    """The number of batches per turn, so that the planned rounds fill the remaining time."""
    round_s = sum(side.batch_s for side in left)
    workers_s = sum(side.batch_s for side in left if side.name == "PyG") * 2 * len(WORKERS)
    batches = int(left_s / max(1e-9, PLANNED_ROUNDS * round_s + workers_s))
    return max(1, min(MOST_BATCHES, len(setting.train_ids) // setting.batch_size, batches))


def _obstacles(setting: VersusSetting, sides: Sequence[Side]) -> tuple[Obstacle, ...]:
    """The check's obstacles for a model that any mode of this library refused; none if it does not
    run at all, since each side has the reason."""
    if not any(isinstance(side, StaticSide) and side.report.refused for side in sides):
        return ()
    model = setting.fresh_model()
    report = attempt(lambda: check(model, setting.plan, setting.store, forward=setting.forward))
    return () if report is None else report.obstacles
