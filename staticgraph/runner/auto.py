"""How ``mode="auto"`` measures, and the clock that it measures by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from staticgraph.steps.compilation.modes import FUSED, OWN
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
