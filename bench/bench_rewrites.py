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
import copy
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.loader import DataLoader

import staticgraph as sg
from bench import tables
from bench.interleave import interleave
from bench.machine import machine, write
from bench.options import options_of
from bench.published_models import PUBLISHED
from staticgraph.checking.explain import CapturedStep
from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.dryrun.operations import count_step
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_arguments import forward_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.how_many import how_many
from staticgraph.training.versus.sides import PlainSide, VersusSetting

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.written_by_hand import MODELS

ESOL = "examples/data/esol.npz"
LAYERS = 4
SHOWN = (
    *PUBLISHED,
    *("gine", "gcn", "gcn, learnt weights", "gat", "gatv2", "pna", "gps", "own"),
    *("molecule gin", "molecule gcn", "transformer"),
)


def squared(out: torch.Tensor, batch) -> torch.Tensor:
    return F.mse_loss(out, batch.y, reduction="none")


class Contest:
    """One model and the ways to train it."""

    def __init__(self, name: str, batch_size: int, hidden: int) -> None:
        self.store = sg.datasets.open(ESOL)
        self.plan = sg.plan_buckets(self.store, batch_size=batch_size)
        self.ids = np.arange(len(self.store))
        torch.manual_seed(0)
        self.model = (MODELS | PUBLISHED)[name](hidden=hidden, layers=LAYERS)
        order = self._loader().batcher.epoch(0)
        self.order = [batch.ids.tolist() for batch in order]
        self.capture_s = 0.0

    def _loader(self) -> sg.StaticLoader:
        return sg.StaticLoader(self.store, self.plan, indices=self.ids, shuffle=True, pointers=True)

    def static(self, mode: str):
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        runner = sg.StaticGraphRunner(model, self.plan, mode, loss=squared, optimizer=optimizer)
        loader = self._loader()
        runner.warmup(self.store, phases=("step",), progress=False)
        if mode == "fused":
            counts = [count for _, count in runner.steps.compiled.counts]
            self.capture_s = max(count.seconds for count in counts)

        def epoch() -> None:
            loader.set_epoch(0)
            for batch in loader:
                runner.step(batch)

        return epoch

    def pyg(self, workers: int):
        ids, forward = self.ids, forward_of(self.model)
        size, device = len(self.order[0]), torch.device("cpu")
        side = PlainSide(
            VersusSetting(self.model, self.store, self.plan, squared, forward, ids, size, device),
            workers=workers,
        )
        side.prepare()
        side.begin(self.order)
        return side.turn

    def operations(self) -> tuple[int, int]:
        """Counts the operations of a step: plain PyG's on one of its batches, and rewritten."""
        batch = next(iter(self._loader())).clone()
        batch = sg.StaticBatch(batch.layout, batch.tensors())
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        step = CapturedStep(Computation(Subject(model, squared)), "step", batch)
        step().backward()
        optimizer.step()
        rewritten = count_step(step, optimizer).total()
        stock = copy.deepcopy(self.model)
        optimizer = torch.optim.Adam(stock.parameters(), fused=True)
        graphs = DataLoader([self.store[int(i)] for i in self.order[0]], len(self.order[0]))
        data = next(iter(graphs))
        call = forward_of(stock)

        def forward() -> torch.Tensor:
            return squared(call(stock, PlainBatch(data)), data).mean()

        forward().backward()
        optimizer.step()
        return count_step(forward, optimizer).total(), rewritten


def main() -> None:
    options = options_of(
        __doc__,
        models=list(SHOWN),
        batch_size=[128],
        hidden=[64],
        processor_time=False,
        rounds=5,
        threads=[1, 2],
        workers=[0, 1],
        json=Path,
    )
    rows: list[dict[str, Any]] = []
    found = {
        "options": vars(options) | {"layers": LAYERS, "data": ESOL},
        "device": "cpu",
        "rows": rows,
    }
    settings = (options.models, options.batch_size, options.hidden, options.threads)
    for name, batch_size, hidden, threads in itertools.product(*settings):
        torch.set_num_threads(threads)
        rows.append(measured(name, batch_size, hidden, threads, options))
        print({key: value for key, value in rows[-1].items() if key != "seconds"}, flush=True)
        if options.json:
            write(options.json, found)
    print(tables.rewrites({"rewrites": machine() | found}))


def measured(
    name: str, batch_size: int, hidden: int, threads: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measures one model with ``threads`` threads, relative to PyG at its best."""
    contest = Contest(name, batch_size, hidden)
    contenders = {f"PyG, {how_many(w, 'worker')}": contest.pyg(w) for w in options.workers}
    contenders |= {mode: contest.static(mode) for mode in ("eager", "fused")}
    clock = time.process_time if options.processor_time else time.perf_counter
    timings = interleave(contenders, options.rounds, clock=clock)
    of_pyg = [key for key in timings if key.startswith("PyG")]
    best = min(of_pyg, key=lambda key: timings[key].median)
    stock, rewritten = contest.operations()
    return {
        "model": name,
        "batch_size": batch_size,
        "hidden": hidden,
        "threads": threads,
        "best_pyg": best,
        "pyg_graphs_per_second": len(contest.ids) / timings[best].median,
        "fused": spread(timings[best].seconds / timings["fused"].seconds),
        "eager": spread(timings[best].seconds / timings["eager"].seconds),
        "operations": {"PyG": stock, "rewritten": rewritten},
        "capture_s": contest.capture_s,
        "seconds": {key: timing.seconds.tolist() for key, timing in timings.items()},
    }


def spread(ratio: np.ndarray) -> dict[str, float]:
    """Returns the median and the 10th and 90th percentile of the ratios per round."""
    low, middle, high = np.percentile(ratio, [10, 50, 90])
    return {"median": float(middle), "p10": float(low), "p90": float(high)}


if __name__ == "__main__":
    main()
