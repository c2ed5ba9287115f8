"""Training end to end, loading included: this library compared with plain PyG.

    python -m bench.bench_training --model gine --rounds 5 [--json FILE]
    python -m bench.bench_training --device cuda --hidden 300 --layers 5 --modes cuda-graph auto

Both train the same model from the same weights over the same batches in the same order (PyG's
DataLoader gets the ids of each batch), with the same fused Adam, so that the losses must agree. The
number of PyG's workers is the best of 0, 1 and 2 in the same run. A round is an epoch over
``--graphs`` training molecules of HIV. A loss that differs by more than rounding allows is an
error.
"""

from __future__ import annotations

import sys
import time
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
from bench.rehearsal import LABEL, recorder
from staticgraph.files.versions import STEPS, versions
from staticgraph.models import build
from staticgraph.runner.counters import device_name
from staticgraph.steps.computation.model_arguments import forward_of
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table
from staticgraph.training.versus.sides import PlainSide, Side, StaticSide, VersusSetting

HIV = "examples/data/hiv.npz"
# ReLUs flipped by rounding change a loss by about 1e-5 (tests/test_runner.py measures it).
LOSS_TOLERANCE = 1e-3


def bce(out: torch.Tensor, batch) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(out, batch.y, reduction="none")


def setting_of(options: Any) -> VersusSetting:
    """Returns the setting of all contenders."""
    store = sg.datasets.open(HIV)
    plan = sg.plan_buckets(store, batch_size=options.batch_size)
    torch.manual_seed(0)
    model = build(options.model, store, hidden=options.hidden, layers=options.layers)
    ids, device = store.splits["train"][: options.graphs], torch.device(options.device)
    return VersusSetting(
        model, store, plan, bce, forward_of(model), ids, options.batch_size, device
    )


def sides_of(options: Any, setting: VersusSetting, until: float) -> dict[str, Side]:
    """Returns PyG with each number of workers and this library in each mode, by name; after
    ``until`` PyG is not compiled."""
    sides: dict[str, Side] = {}

    def add(name: str, side: Side) -> None:
        side.prepare()
        side.begin(setting.course(len(setting.train_ids)))
        sides[name] = side

    for workers in options.workers:
        add(f"PyG, {how_many(workers, 'worker')}", PlainSide(setting, workers=workers))
    for mode in options.modes:
        side = StaticSide(setting, mode, recording=sg.Recording(recorder=recorder(mode)))
        side.kernels = options.device == "cuda"
        add("static batches" + ("" if mode == "auto" else f", {mode}"), side)
    if options.dynamic and time.perf_counter() < until:
        workers = max(options.workers)
        name = f"PyG, {how_many(workers, 'worker')}, compile(dynamic=True)"
        add(name, PlainSide(setting, compiled=True, workers=workers))
    return sides


def main() -> None:
    options = options_of(
        __doc__, model="gine", hidden=64, layers=4, batch_size=128, graphs=8192, rounds=5,
        device="cpu", modes=["auto"], workers=[0, 1, 2], dynamic=False, deadline=1e9, json=Path,
    )  # fmt: skip
    until = time.perf_counter() + options.deadline
    setting = setting_of(options)
    graphs, last = len(setting.train_ids), {}

    def epoch(name: str, side: Side) -> Callable[[], None]:
        return lambda: last.update({name: float(side.turn().mean())})

    contenders = {n: epoch(n, side) for n, side in sides_of(options, setting, until).items()}
    timings = interleave(contenders, options.rounds, until=until)
    of_pyg = (name for name in timings if name.startswith("PyG"))
    best = min(of_pyg, key=lambda name: timings[name].median)
    results, rows = {}, []
    for name, timing in timings.items():
        rate = float(np.median(graphs / timing.seconds))
        low, middle, high = np.percentile(timings[best].seconds / timing.seconds, [10, 50, 90])
        ratio = {"median": middle, "p10": low, "p90": high}
        loss = last[name]
        results[name] = {"graphs_per_second": rate, "ratio_to_best_pyg": ratio, "loss": loss}
        shown = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        rows.append((name, f"{rate:,.0f}", shown, f"{loss:.6f}"))
    device = device_name(setting.device)
    print(
        f"{LABEL}{options.model}, hidden {options.hidden}, {how_many(options.layers, 'layer')}, "
        f"batch {options.batch_size}, {graphs} molecules an epoch, {device}, {versions(STEPS)}"
    )
    print(table(("contender", "graphs/s", f"times {best}", "last loss"), rows))
    if options.json:
        write(options.json, {"options": vars(options), "device": device, **results})
    if max(last.values()) - min(last.values()) > LOSS_TOLERANCE:
        sys.exit(f"the losses differ: {list(last.values())}")


if __name__ == "__main__":
    main()
