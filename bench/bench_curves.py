"""Five epochs of training on HIV's molecules, with the same steps run in each mode.

    python -m bench.bench_curves --modes eager reduce-overhead cuda-graph --seeds 0 1 2 --json FILE

Every mode starts from the same weights and sees the same batches in the same order, so that the
loss curves must coincide. Each epoch reports the mean loss, seconds with loading, graphs per
second, and ROC-AUC on the validation split. Seeds change the weights and the order. The first mode
is the reference. It is fine to name more modes or seeds than there is time for: no run begins after
the deadline, and the file holds the finished ones.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import staticgraph as sg
from bench.machine import write
from bench.options import options_of
from bench.parts import answer
from bench.steps import HIV, Shape, bce
from staticgraph.models import build
from staticgraph.training.tasks import roc_auc


def train(
    shape: Shape, mode: str, seed: int, epochs: int, batch_size: int, graphs: int, device: str
) -> dict[str, Any]:
    """Trains one mode with one seed from initial weights."""
    store = sg.datasets.open(HIV)
    mode, kernels = mode.removesuffix("+kernels"), mode.endswith("+kernels")
    torch.manual_seed(seed)
    model = build(shape.name, store, hidden=shape.hidden, layers=shape.layers).to(device)
    sg.convert(model, kernels=kernels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    ids = store.splits["train"][:graphs]
    plan = sg.plan_buckets(store, batch_size=batch_size)
    options = {"device": device, "pointers": kernels}
    loader = sg.StaticLoader(store, plan, indices=ids, shuffle=True, seed=seed, **options)
    held = store.splits["val"][:graphs]
    validation = sg.StaticLoader(store, plan, indices=held, exact=False, **options)
    runner = sg.StaticGraphRunner(
        model, plan, mode, loss=bce, optimizer=optimizer, recording=sg.Recording(allow_cpu=True)
    )
    started = time.perf_counter()
    runner.warmup(store, progress=False)
    found: dict[str, Any] = {
        "warmup_s": time.perf_counter() - started,
        "choices": [str(choice) for choice in runner.report().choices],
        "losses": [],
        "epoch_loss": [],
        "epoch_s": [],
        "graphs_per_second": [],
        "validation_auc": [],
    }
    for _ in range(epochs):
        begun, losses, seen = time.perf_counter(), [], 0
        for batch in loader:
            seen += batch.real.graphs
            losses.append(runner.step(batch))
        values = torch.stack(losses).tolist()  # waits for the device, so the epoch is complete
        seconds = time.perf_counter() - begun
        found["losses"] += values
        found["epoch_loss"].append(float(np.mean(values)))
        found["epoch_s"].append(seconds)
        found["graphs_per_second"].append(seen / seconds)
        found["validation_auc"].append(auc(runner, validation))
    return found


def auc(runner: sg.StaticGraphRunner, loader: sg.StaticLoader) -> float:
    """Returns the ROC-AUC over a split."""
    scores, targets = [], []
    for batch in loader:
        out = runner.eval_step(batch).out
        mask = batch.graph_mask
        scores.append(out[mask].flatten().float().cpu())
        targets.append(batch.y[mask].flatten().long().cpu())
    return roc_auc(torch.cat(scores), torch.cat(targets))


def compare(runs: dict[str, Any], modes: list[str]) -> dict[str, Any]:
    """Compares each run with that of the first mode with the same model and seed."""
    found = {}
    for name, run in runs.items():
        if not isinstance(run, dict) or "epoch_loss" not in run:
            continue
        model, mode, seed = name.rsplit(" ", 2)
        first = runs.get(f"{model} {modes[0]} {seed}", {})
        if mode != modes[0] and "epoch_loss" in first:
            ours, theirs = np.array(run["losses"]), np.array(first["losses"])
            found[name] = {
                "largest_step_difference": float(np.abs(ours - theirs).max()),
                "last_epoch_loss_difference": run["epoch_loss"][-1] - first["epoch_loss"][-1],
                "times_as_fast": first["epoch_s"][-1] / run["epoch_s"][-1],
                "last_auc": [first["validation_auc"][-1], run["validation_auc"][-1]],
            }
    return found


def main() -> None:
    options = options_of(
        __doc__,
        models=["gine:5x300"],
        modes=["eager", "cuda-graph", "reduce-overhead"],
        seeds=[0],
        epochs=5,
        batch_size=256,
        graphs=10**9,
        device="cuda" if torch.cuda.is_available() else "cpu",
        deadline=1e9,
        json=Path,
    )
    runs: dict[str, Any] = {}

    def part(text: str, mode: str, seed: int):
        def run() -> dict[str, Any]:
            torch.compiler.reset()
            return train(
                Shape.parse(text),
                mode,
                seed,
                options.epochs,
                options.batch_size,
                options.graphs,
                options.device,
            )

        return run

    # All modes of a seed before the next seed, so that the deadline does not separate runs that
    # are compared.
    for text in options.models:
        for seed in options.seeds:
            for mode in options.modes:
                runs[f"{text} {mode} {seed}"] = part(text, mode, seed)
    answers = answer(runs, options.json, options.deadline)
    answers["compared"] = compare(answers, options.modes)
    if options.json:
        write(options.json, answers)
    for name, row in answers["compared"].items():
        print(name, row)


if __name__ == "__main__":
    main()
