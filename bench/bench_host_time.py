"""What Python does in one step: calls, and host time, of an eager step and of a replayed one.

The recorder here runs the step once and replays nothing, so that what is left of a replayed step is
what the library does around a recording: the copy of the batch to the recorded addresses, checks,
and the copy of the loss. A recorded step on a GPU is a few hundred microseconds; what stands around
it must stay far below. Both steps and an empty function run in turns; the figures are medians.

    python -m bench.bench_host_time --rounds 300
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import staticgraph as sg
from staticgraph.models import MODELS, build
from staticgraph.running.recorder import Recording


class NothingRecorded:
    """A recorder whose replays do nothing."""

    compiles = False

    def __init__(self, device: torch.device) -> None:
        pass

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        body()

    def record(self, body: Callable[[], Any]) -> Recording:
        return Recording(lambda: None, body())

    def close(self) -> None:
        pass


def runner_of(mode: str, store: sg.GraphStore, plan: sg.BucketPlan) -> sg.StaticGraphRunner:
    torch.manual_seed(0)
    model = BUILD(store)
    runner = sg.StaticGraphRunner(
        model,
        plan,
        mode,
        loss=lambda out, batch: F.mse_loss(out.view(-1), batch.y.view(-1), reduction="none"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0, fused=True),
        recorder=NothingRecorded if mode == "cuda-graph" else None,
    )
    return runner.warmup(store, progress=False)


def calls_of(step: Callable[[], Any]) -> int:
    """Calls of Python functions in one run."""
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def medians_us(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Microseconds of each, run in turns."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter_ns()
            step()
            taken[name].append((time.perf_counter_ns() - started) / 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}
