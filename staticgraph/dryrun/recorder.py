"""A recorder for the runner that records nothing, and refuses what a recording could not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from staticgraph.dryrun.launches import WATCH, Launch
from staticgraph.probing.live_storages import CUDA_BLOCK, CachingPool, LiveStorages
from staticgraph.recording.recorder import Recorded


@dataclass(slots=True)
class CountedStep:
    """The counts of one run.

    Attributes:
        launches: in order.
        operators: by part and name.
        resident_bytes: what existed before the run: parameters, optimizer state, inputs.
        peak_bytes: the most at once, including those.
        reserved_bytes: what torch's caching allocator would have taken from the driver for it.
        moments: part, name and live bytes at each launch or allocation.
    """

    launches: list[Launch]
    operators: Counter[tuple[str, str]]
    resident_bytes: int
    peak_bytes: int
    reserved_bytes: int
    moments: list[tuple[str, str, int]]


def counted(body: Callable[[], Any], resident: Iterable[Tensor]) -> tuple[Any, CountedStep]:
    """Runs a function and counts it.

    Args:
        body: a step.
        resident: tensors that exist before.

    Returns:
        What the body returned, and what was counted.
    """
    pool = CachingPool()
    live = LiveStorages(CUDA_BLOCK, pool=pool)
    live.watch(resident)
    before = live.live_bytes
    live.reset_peak()
    WATCH.live = live
    WATCH.begin()
    try:
        result = body()
    finally:
        launches, operators = WATCH.end()
        WATCH.live = None
    return result, CountedStep(
        launches, operators, before, live.peak_bytes, pool.reserved_bytes, WATCH.moments
    )


class RefusingRecorder:
    """A replacement for :class:`staticgraph.recording.recorder.CudaGraphRecorder`.

    Args:
        resident: returns the tensors that exist before a step.

    Attributes:
        runs: the counts of each recorded body, in the order of recording.
    """

    compiles = True

    def __init__(self, resident: Callable[[], Iterable[Tensor]]) -> None:
        self.runs: list[CountedStep] = []
        self._resident = resident

    def __call__(self, device: torch.device) -> RefusingRecorder:
        """Returns this recorder, whatever the device."""
        return self

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        """Runs the body as on a device, which compiles it and creates state."""
        for _ in range(runs):
            body()

    def record(self, body: Callable[[], Any]) -> Recorded:
        """Runs the body once and counts it, refusing operations that cannot be recorded.

        Raises:
            Refused: a recording could not hold an operation of the body.
        """
        WATCH.recording = True
        try:
            result, run = counted(body, self._resident())
        finally:
            WATCH.recording = False
        self.runs.append(run)
        return Recorded(lambda: None, result)

    def close(self) -> None:
        """Does nothing, since nothing is held."""
