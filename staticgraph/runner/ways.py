"""How a runner executes its steps, and how ``mode="auto"`` measures the ways to choose from.

This is settled once, from the runner's arguments and the model's device.

A mode alone does not settle it: ``auto`` measures on some devices and has a single way on others, a
step with gradient accumulation is recorded without its update, and several ranks must decide by the
same times. What is settled here never changes; :class:`staticgraph.runner.steps.Steps` records less
where an optimizer, or a sum over ranks, cannot be recorded.

The problem of trials on several ranks: a rank that finds its time limit spent, or another way
faster, prepares and steps differently from the rest, and a sum over ranks then waits for ever. The
idea: every measurement is replaced by that of the slowest rank, on all ranks, so that all of them
decide alike; the slowest rank is also the one that a step waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from staticgraph.distributed.ranks import Ranks, ranks_for
from staticgraph.recording.recording_keys import Recording
from staticgraph.steps.compilation.modes import FUSED, OWN, Mode, resolve, without_fused
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.numeric_options import real_option, whole_option

# Simplest first: a tie goes to the earlier way.
WAYS = ("eager", FUSED, "default", OWN)
# With fewer rounds, "faster in most rounds" means nothing.
LEAST_ROUNDS = 5


class Stopwatch:
    """Times steps on one device; tests pass their own.

    Args:
        device: CUDA is timed between two events, anything else by wall time, as the report's steps
            are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float:
        """Returns seconds, for the time limit."""
        return time.monotonic()

    def milliseconds(self, way: str, step: Callable[[], Any]) -> float:
        """Returns how long one step of a way took."""
        if self._device.type != "cuda":
            started = time.perf_counter()
            step()
            return 1e3 * (time.perf_counter() - started)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device is idle and waits for the host, so host time shows between the events.
        torch.cuda.synchronize(self._device)
        stream = torch.cuda.current_stream(self._device)  # not necessarily the current device
        start.record(stream)
        step()
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end)


class SharedStopwatch(Stopwatch):
    """A stopwatch that returns the slowest rank's times.

    Args:
        own: this rank's stopwatch.
        ranks: the ranks that measure.
    """

    def __init__(self, stopwatch: Stopwatch, ranks: Ranks) -> None:
        self._stopwatch, self._ranks = stopwatch, ranks
        self._begun = stopwatch.now()

    def now(self) -> float:
        """Returns seconds since this was made, the largest of all ranks."""
        return self._ranks.largest(self._stopwatch.now() - self._begun)

    def milliseconds(self, way: str, step: Callable[[], Any]) -> float:
        """Returns how long one step took on the slowest rank; raises on all if it does on one."""
        with self._ranks.together():
            taken = self._stopwatch.milliseconds(way, step)
        return self._ranks.largest(taken)


@dataclass(frozen=True, slots=True)
class Auto:
    """How the fastest way of each bucket is found; ``mode="auto"`` is ``mode=Auto()``.

    Attributes:
        limit_s: seconds after which no further way of any bucket is started, compilation included.
        rounds: how many steps of each way are timed at most; fewer where these decide.
        ways: what may be chosen, simplest first; by default ``eager``, on a CPU ``fused`` (the
            captured graph rewritten to this library's operators), on CUDA ``default`` (compiled),
            and ``cuda-graph`` where it can record.
        on_cpu: whether to measure compiled ways on a CPU, too: compiling a key takes 10 to 40
            seconds there (two cores, 2026-11-20), and made GNN training slower wherever it was
            measured; see ``bench_runner``. Capturing one for ``fused`` takes one to three seconds.
        stopwatch: called with the device; returns the stopwatch to measure with.

    Raises:
        ValueError: ``ways`` are unknown, out of order or without ``eager``, there are too few
            rounds to choose by, or the limit is negative.
    """

    limit_s: float = 600.0
    rounds: int = 20
    ways: tuple[str, ...] = WAYS
    on_cpu: bool = False
    stopwatch: Callable[[torch.device], Stopwatch] = Stopwatch

    def __post_init__(self) -> None:
        unknown = [way for way in self.ways if way not in WAYS]
        if unknown or not self.ways or self.ways[0] != "eager":
            raise ValueError(
                f"ways={self.ways}: eager first, then any of {', '.join(WAYS[1:])}, in this order"
            )
        object.__setattr__(self, "rounds", whole_option("rounds", self.rounds, LEAST_ROUNDS))
        limit_s = real_option("limit_s", self.limit_s, 0, infinite=True)
        object.__setattr__(self, "limit_s", limit_s)

    @classmethod
    def of(cls, mode: str | Auto) -> Auto | None:
        """The measuring options of a mode; None if the mode is itself one of the ways."""
        return mode if isinstance(mode, Auto) else cls() if mode == "auto" else None

    def on(self, device: torch.device, can_record: bool) -> Auto | None:
        """The options for a device, with the ways to measure there; None if nothing is measured."""
        left_out = {OWN} if not can_record else set()
        if device.type == "cuda":
            left_out.add(FUSED)
        elif not self.on_cpu:
            left_out |= {"default", OWN}
        ways = tuple(way for way in self.ways if way not in left_out)
        return replace(self, ways=ways) if len(ways) > 1 or self.on_cpu else None


@dataclass(frozen=True, slots=True)
class Execution:
    """How the steps of one runner are executed.

    Attributes:
        mode: the mode of every bucket; with ``auto``, until it has measured.
        auto: how the ways of each bucket are measured; None where there is nothing to choose.
        recording: how, and how much, is recorded.
        ranks: the processes that train the model together; None for this process alone.
    """

    mode: Mode
    auto: Auto | None
    recording: Recording
    ranks: Ranks | None

    @classmethod
    def of(
        cls,
        subject: Subject,
        mode: str | Auto,
        recording: Recording | None,
        distributed: str | torch.distributed.ProcessGroup,
    ) -> Execution:
        """Settles the execution from the arguments of :class:`staticgraph.StaticGraphRunner`.

        Raises:
            ValueError: the mode is unknown, or not available on this device or for this model.
        """
        recording, device = recording or Recording(), subject.device
        if subject.accumulate > 1 and recording.scope == "step":
            recording = replace(recording, scope="forward_backward")
        ranks = ranks_for(distributed, device) if subject.trains else None
        name, auto = mode if isinstance(mode, str) else "auto", Auto.of(mode)
        auto = auto and auto.on(device, recording.records_on(device))
        resolved = resolve(name, device.type, recording.anywhere)
        if auto is not None and not resolved.compiled:
            until = f"auto: eager on {device.type}, until warmup() has measured"
            resolved = resolved._replace(reason=until)
        if resolved.fused and (why := without_fused()):
            raise ValueError(f"mode='fused' cannot be: {why}; give mode='eager', or a compiled one")
        return cls(resolved, auto, recording, ranks)

    @property
    def compiles(self) -> bool:
        """Whether there is anything to prepare before the first step."""
        return self.mode.compiled or self.auto is not None

    @property
    def records(self) -> bool:
        """Whether this library may record CUDA graphs."""
        return self.mode.by_library or (self.auto is not None and OWN in self.auto.ways)

    @property
    def records_step(self) -> bool:
        """Whether a recorded training step may include the optimizer's update."""
        return self.records and self.recording.scope == "step"

    @property
    def records_gradients(self) -> bool:
        """Whether a recorded training step may include its backward."""
        return self.records and self.recording.scope != "forward"

    @property
    def tries_fused(self) -> bool:
        """Whether ``auto`` measures the rewritten graph."""
        return self.auto is not None and FUSED in self.auto.ways

    @property
    def only_fused(self) -> bool:
        """Whether ``auto`` has nothing to measure but the rewritten graph.

        The user did not request that graph, so where it cannot be captured, all runs in eager.
        """
        return self.auto is not None and set(self.auto.ways) <= {"eager", FUSED}
