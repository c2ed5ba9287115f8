"""What Python does in one step: calls, and host time, of an eager step and of a replayed one.

The recorder here runs the step once and replays nothing, so that what is left of a replayed step is
what the library does around a recording: the copy of the batch to the recorded addresses, checks,
and the copy of the loss. A recorded step on a GPU is a few hundred microseconds; what stands around
it must stay far below. Both steps and an empty function run in turns; the figures are medians.

    python -m bench.bench_host_time --rounds 300
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import staticgraph as sg
from staticgraph import models
from staticgraph.recording.recorder import Recorded
from staticgraph.text.table import table


class NothingRecorded:
    """A recorder whose replays do nothing."""

    compiles = False

    def __init__(self, device: torch.device) -> None:
        pass

    def warm(self, body: Callable[[], Any], runs: int) -> None:
        body()

    def record(self, body: Callable[[], Any]) -> Recorded:
        return Recorded(lambda: None, body())

    def close(self) -> None:
        pass


def runner_of(
    mode: str, store: sg.GraphStore, plan: sg.BucketPlan, args: argparse.Namespace
) -> sg.StaticGraphRunner:
    torch.manual_seed(0)
    model = models.build(args.model, store, hidden=args.hidden, layers=args.layers)
    runner = sg.StaticGraphRunner(
        model,
        plan,
        mode,
        loss=lambda out, batch: F.mse_loss(out.view(-1), batch.y.view(-1), reduction="none"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0, fused=True),
        recording=sg.Recording(recorder=NothingRecorded if mode == "cuda-graph" else None),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="examples/data/esol.npz")
    parser.add_argument("--model", default="gine")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    store = sg.datasets.open(args.data)
    plan = sg.plan_buckets(store, batch_size=args.batch_size)
    batch = next(iter(sg.StaticLoader(store, plan))).clone()
    runners = {mode: runner_of(mode, store, plan, args) for mode in ("eager", "cuda-graph")}
    steps: dict[str, Callable[[], Any]] = {
        "eager step": lambda: runners["eager"].step(batch),
        "replayed step": lambda: runners["cuda-graph"].step(batch),
        "replayed evaluation": lambda: runners["cuda-graph"].eval_step(batch),
        "nothing": lambda: None,
    }
    medians_us(steps, 10)
    taken = medians_us(steps, args.rounds)
    rows = {name: (calls_of(step) - 1, taken[name]) for name, step in steps.items()}
    print(table(("", "Python calls", "us"), [(n, c, f"{t:.1f}") for n, (c, t) in rows.items()]))
    if args.json is not None:
        found = {name: {"calls": calls, "us": us} for name, (calls, us) in rows.items()}
        args.json.write_text(json.dumps({**vars(args), "json": None, "steps": found}, indent=1))


if __name__ == "__main__":
    main()
