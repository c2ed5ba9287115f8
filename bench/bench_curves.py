"""Epochs of training on HIV's molecules, with the same steps run in each mode.

    python -m bench.bench_curves --model gine:5x300 --modes eager cuda-graph --json FILE

Every mode starts from the same weights and sees the same batches in the same order, so that the
loss curves must coincide. Each epoch reports the mean loss, seconds with loading, graphs per
second, and ROC-AUC on the validation split. If there is not
time for all modes, the file holds the finished ones.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import staticgraph as sg
from bench.options import options_of
from bench.parts import answer
from bench.steps import DEVICE, HIV, Shape, static_runner
from staticgraph.training.tasks import roc_auc

# Of the weights and of the order.
SEED = 0


def train(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one mode from initial weights."""
    torch.compiler.reset()
    store = sg.datasets.open(HIV)
    train_ids, valid_ids = (store.splits[name][: options.graphs] for name in ("train", "val"))
    plan = sg.plan_buckets(store, batch_size=options.batch_size)
    runner = static_runner(Shape.parse(options.model).build(store, SEED).to(DEVICE), plan, mode)
    loader = runner.loader(store, indices=train_ids, shuffle=True, seed=SEED)
    validation = runner.loader(store, indices=valid_ids, exact=False)
    started = time.perf_counter()
    runner.warmup(store, progress=False)
    results: dict[str, Any] = {"warmup_s": time.perf_counter() - started}
    curves = ("epoch_loss", "epoch_s", "graphs_per_second", "validation_auc")
    results |= {curve: [] for curve in curves}
    for _ in range(options.epochs):
        begun = time.perf_counter()
        losses = torch.stack([runner.step(batch) for batch in loader])
        loss = float(losses.mean())  # waits for the device, so the epoch is complete
        seconds = time.perf_counter() - begun
        values = (loss, seconds, len(train_ids) / seconds, auc(runner, validation))
        for curve, value in zip(curves, values, strict=True):
            results[curve].append(value)
    return results


def auc(runner: sg.StaticGraphRunner, loader: sg.StaticLoader) -> float:
    """Returns the ROC-AUC over a split."""
    scores, targets = [], []
    for batch in loader:
        out = runner.eval_step(batch).out
        scores.append(out[batch.graph_mask].flatten().float().cpu())
        targets.append(batch.y[batch.graph_mask].flatten().long().cpu())
    return roc_auc(torch.cat(scores), torch.cat(targets))


def main() -> None:
    options = options_of(
        __doc__, model="gine:5x300", modes=["eager", "cuda-graph", "reduce-overhead"], epochs=5,
        batch_size=256, graphs=10**9, json=Path,
    )  # fmt: skip
    runs = {
        f"{options.model} {mode} {SEED}": partial(train, mode, options) for mode in options.modes
    }
    answer(runs, options.json)


if __name__ == "__main__":
    main()
