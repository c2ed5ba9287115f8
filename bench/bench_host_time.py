"""Python function calls and host time of one step, for an eager step and for a replayed one.

The recorder here runs the step once and replays nothing, so that a replayed step consists only of
what the library does around a recording: copying the batch to the recorded addresses, checks, and
copying the loss. A recorded step on a GPU takes a few hundred microseconds; the work around it must
stay far below that. The bound is 60 microseconds, or, on a slow machine, fifteen calls of ``add_``
on eight numbers. Steps that are compared run in turns; the figures are medians, and the ratio to
those fifteen calls is the median of the ratios per round. For a batch that is made on the device
from its ids, only the ids are copied.

    python -m bench.bench_host_time --rounds 300
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import staticgraph as sg
from bench.interleave import interleave
from bench.machine import write
from bench.options import options_of
from staticgraph import models
from staticgraph.recording.recorder import Recorded
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.table import table

# The number of layers of each model that the bound applies to.
MODELS = {"gine": 5, "gps": 10}
BOUND_US = 60.0
BOUND_CALLS = 15


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
    name: str,
    layers: int,
    store: sg.GraphStore,
    plan: sg.BucketPlan,
    mode: str = "cuda-graph",
    hidden: int = 64,
    example: Any = None,
) -> sg.StaticGraphRunner:
    """Returns a runner that is warmed up; its optimizer has learning rate 0."""
    torch.manual_seed(0)
    model = models.build(name, store, hidden=hidden, layers=layers)
    subject = Subject(
        model,
        loss=lambda out, batch: F.mse_loss(out.view(-1), batch.y.view(-1), reduction="none"),
        optimizer=torch.optim.Adam(model.parameters(), lr=0.0, fused=True, capturable=True),
        check_padding=False,  # what the recorder leaves out would be found
    )
    runner = sg.StaticGraphRunner(
        subject,
        plan,
        mode,
        recording=sg.Recording(recorder=NothingRecorded if mode == "cuda-graph" else None),
    )
    return runner.warmup(store if example is None else example, progress=False)


def calls_of(step: Callable[[], Any]) -> int:
    """Returns the number of Python function calls in one run."""
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


def _measured(model: str, layers: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    store = sg.datasets.open(args.data)
    plan = sg.plan_buckets(store, batch_size=args.batch_size)
    moved = store.to("cpu")
    batch, from_ids = (next(iter(sg.StaticLoader(s, plan))) for s in (store, moved))
    eager = runner_of(model, layers, store, plan, "eager", args.hidden)
    recorded = runner_of(model, layers, store, plan, hidden=args.hidden)
    on_device = runner_of(model, layers, store, plan, hidden=args.hidden, example=moved)
    eight = torch.zeros(8)

    def additions() -> None:
        for _ in range(BOUND_CALLS):
            eight.add_(1.0)

    step: dict[str, Callable[[], Any]] = {
        f"{BOUND_CALLS} add_": additions,
        "replayed step": lambda: recorded.step(batch),
        "replayed step from ids": lambda: on_device.step(from_ids),
    }
    others: dict[str, Callable[[], Any]] = {
        "replayed evaluation": lambda: recorded.eval_step(batch),
        "eager step": lambda: eager.step(batch),
    }
    found: dict[str, dict[str, float]] = {}
    # In two groups: after one of the other steps, the caches hold nothing of a replay.
    for steps in (step, {f"{BOUND_CALLS} add_": additions, **others}):
        timings = interleave(steps, args.rounds, warmup=10)
        for name, run in steps.items():
            ratio = float(np.median(1 / timings[name].ratio))
            row = {"calls": calls_of(run) - 1, "us": 1e6 * timings[name].median}
            found.setdefault(name, {**row, "of_additions": ratio})
    return found


def main() -> None:
    args = options_of(
        __doc__,
        data="examples/data/esol.npz",
        model=str,
        hidden=64,
        layers=int,
        batch_size=32,
        rounds=300,
        json=Path,
    )
    chosen = MODELS
    if args.model is not None:
        chosen = {args.model: args.layers or MODELS.get(args.model, 5)}
    torch.set_num_threads(1)
    found = {
        f"{name}, {layers} layers": _measured(name, layers, args) for name, layers in chosen.items()
    }
    for title, steps in found.items():
        head = (title, "Python calls", "us", f"of {BOUND_CALLS} add_")
        rows = [
            (step, f"{row['calls']:.0f}", f"{row['us']:.1f}", f"{row['of_additions']:.2f}")
            for step, row in steps.items()
        ]
        print(table(head, rows))
        step = steps["replayed step"]
        kept = step["us"] < BOUND_US or step["of_additions"] < 1
        print(f"bound {'kept' if kept else 'NOT KEPT'}: {BOUND_US:.0f} us, or 1.00\n")
    if args.json is not None:
        write(args.json, {**vars(args), "json": None, "steps": found})


if __name__ == "__main__":
    main()
