"""Models of users, unedited, rewritten from their captured graph and compared with plain PyG.

    python -m bench.bench_rewrites [--models gine gcn ...] [--rounds 5] [--threads 1 2]
        [--json bench/results/rewrites.json]
    python -m bench.bench_rewrites --models gine gcn --threads 1 --workers 0 --processor-time
        --batch-size 8 32 128 256 --hidden 16 64 256 --rounds 9
        --json bench/results/break_even.json

Per model: seconds to capture and rewrite a bucket, operations per step, and whole training epochs
(loading included) compared with PyG at its best of 0 and 1 workers. All contenders take turns in
one process over the same batches. The file is written after every model, so an interrupted run
keeps its results; :mod:`bench.tables` turns it into the tables of the documents.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import staticgraph as sg
from bench import tables
from bench.interleave import interleave, spread
from bench.machine import machine, write
from bench.options import options_of
from bench.published_models import PUBLISHED
from staticgraph.checking.explain import CapturedStep
from staticgraph.dryrun.operations import count_step
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.how_many import how_many
from staticgraph.training.build_run import adam
from staticgraph.training.versus.sides import PlainSide, Side, StaticSide, VersusSetting

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.written_by_hand import MODELS

ESOL = "examples/data/esol.npz"
LAYERS = 4
SHOWN = (
    *PUBLISHED,
    *("gine", "gcn", "gcn by hand, learnt weights", "gat", "gatv2", "pna", "gps", "own"),
    *("molecule gin", "molecule gcn", "transformer"),
)


def squared(out: torch.Tensor, batch) -> torch.Tensor:
    return F.mse_loss(out, batch.y, reduction="none")


def setting_of(name: str, batch_size: int, hidden: int) -> VersusSetting:
    """Returns what all ways to train one model share."""
    store = sg.datasets.open(ESOL)
    torch.manual_seed(0)
    model = (MODELS | PUBLISHED)[name](hidden=hidden, layers=LAYERS)
    ids = np.arange(len(store))
    return VersusSetting(model, store, squared, batch_size=batch_size, train_ids=ids)


def operations_of(setting: VersusSetting) -> dict[str, int]:
    """Counts the operations of a step: plain PyG's on one of its batches, and rewritten."""
    plain = PlainSide(setting)
    plain.prepare()
    plain.begin(setting.course(1))
    data = next(plain.batches())
    plain.step(data)  # makes the optimizer's state
    stock = count_step(
        lambda: squared(setting.forward(plain.model, data), data).mean(), plain.optimizer
    )
    loader = sg.StaticLoader(setting.store, setting.plan, shuffle=True, pointers=True)
    batch = next(iter(loader)).clone()
    batch = sg.StaticBatch(batch.layout, batch.tensors())
    model = setting.fresh_model()
    optimizer = adam(model, setting.lr, setting.device)
    step = CapturedStep(Computation(Subject(model, squared)), "step", batch)
    step().backward()
    optimizer.step()
    return {"PyG": stock.total(), "rewritten": count_step(step, optimizer).total()}


def measured(
    name: str, batch_size: int, hidden: int, threads: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measures one model with ``threads`` threads, relative to PyG at its best."""
    torch.set_num_threads(threads)
    setting = setting_of(name, batch_size, hidden)
    fused, graphs = StaticSide(setting, "fused"), len(setting.train_ids)
    sides: dict[str, Side] = {
        f"PyG, {how_many(workers, 'worker')}": PlainSide(setting, workers=workers)
        for workers in options.workers
    }
    of_pyg = list(sides)
    sides |= {"eager": StaticSide(setting, "eager"), "fused": fused}
    for side in sides.values():
        side.prepare()
        side.begin(setting.course(graphs))
    clock = time.process_time if options.processor_time else time.perf_counter
    turns = {key: side.turn for key, side in sides.items()}
    seconds = interleave(turns, options.rounds, clock=clock)
    best = min(of_pyg, key=lambda key: np.median(seconds[key]))
    assert fused.runner is not None
    return {
        "model": name,
        "batch_size": batch_size,
        "hidden": hidden,
        "threads": threads,
        "best_pyg": best,
        "pyg_graphs_per_second": graphs / float(np.median(seconds[best])),
        "fused": spread(seconds[best] / seconds["fused"]),
        "eager": spread(seconds[best] / seconds["eager"]),
        "operations": operations_of(setting),
        "capture_s": max(count.seconds for _, count in fused.runner.steps.compiled.counts),
        "seconds": {key: taken.tolist() for key, taken in seconds.items()},
    }


def main() -> None:
    options = options_of(
        __doc__, models=list(SHOWN), batch_size=[128], hidden=[64], processor_time=False, rounds=5,
        threads=[1, 2], workers=[0, 1], json=Path,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    setting = vars(options) | {"layers": LAYERS, "data": ESOL}
    results = {"options": setting, "device": "cpu", "rows": rows}
    settings = (options.models, options.batch_size, options.hidden, options.threads)
    for name, batch_size, hidden, threads in itertools.product(*settings):
        rows.append(measured(name, batch_size, hidden, threads, options))
        print({key: value for key, value in rows[-1].items() if key != "seconds"}, flush=True)
        if options.json:
            write(options.json, results)
    print(tables.rewrites({"rewrites": machine() | results}))


if __name__ == "__main__":
    main()
