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

import argparse
import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.loader import DataLoader

import staticgraph as sg
from bench.interleave import Timing, interleave
from bench.machine import write
from bench.options import options_of
from bench.rehearsal import LABEL, recorder
from staticgraph.files.versions import STEPS, versions
from staticgraph.models import build
from staticgraph.runner.intake import device_name
from staticgraph.text.how_many import how_many
from staticgraph.text.table import table

HIV = "examples/data/hiv.npz"
# ReLUs flipped by rounding change a loss by about 1e-5 (tests/test_runner.py measures it).
LOSS_TOLERANCE = 1e-3


def bce(out: torch.Tensor, batch) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(out, batch.y, reduction="none")


class Training:
    """One model, one order of batches, and the ways to train it."""

    def __init__(
        self, name: str, graphs: int, batch_size: int, hidden: int, layers: int, device: str
    ) -> None:
        self.device = device
        self.store = sg.datasets.open(HIV)
        self.ids = self.store.splits["train"][:graphs]
        self.plan = sg.plan_buckets(self.store, batch_size=batch_size)
        torch.manual_seed(0)
        self.model = build(name, self.store, hidden=hidden, layers=layers)
        self.order = [b.ids.tolist() for b in self._loader().batcher.epoch(0)]
        self.data = {int(i): self.store[int(i)] for i in self.ids}
        self.losses: dict[str, list[float]] = {}

    def _loader(self, pointers: bool = False) -> sg.StaticLoader:
        return sg.StaticLoader(
            self.store,
            self.plan,
            indices=self.ids,
            shuffle=True,
            pointers=pointers,
            device=self.device,
        )

    def static(self, label: str, kernels: bool, **options) -> Callable[[], None]:
        """Returns a function that trains an epoch with this library."""
        model = sg.convert(copy.deepcopy(self.model).to(self.device), kernels=kernels)
        optimizer = self._adam(model)
        recording = sg.Recording(recorder=recorder(options["mode"]))
        runner = sg.StaticGraphRunner(
            model, self.plan, loss=bce, optimizer=optimizer, recording=recording, **options
        )
        loader = self._loader(kernels)
        runner.warmup(self.store, progress=False)

        def epoch() -> None:
            loader.set_epoch(0)
            losses = [runner.step(batch) for batch in loader]
            self.losses.setdefault(label, []).append(float(torch.stack(losses).mean()))

        return epoch

    def _adam(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        on_cuda = self.device == "cuda"
        return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=on_cuda)

    def pyg(self, label: str, workers: int, dynamic: bool = False) -> Callable[[], None]:
        """Returns a function that trains an epoch with PyG at its best.

        Sizes are passed, Adam is fused, and workers are persistent. With ``dynamic``, the model is
        also compiled for variable shapes.
        """
        model = copy.deepcopy(self.model).to(self.device)
        call = torch.compile(model, dynamic=True) if dynamic else model
        optimizer = self._adam(model)
        graphs = [self.data.get(i) for i in range(len(self.store))]
        loader = DataLoader(
            graphs,
            batch_sampler=self.order,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.device == "cuda",
        )

        def epoch() -> None:
            losses = []
            for batch in loader:
                batch = batch.to(self.device, non_blocking=True)
                optimizer.zero_grad(set_to_none=True)
                args = (batch.x, batch.edge_index, batch.edge_attr, batch.batch)
                loss = bce(call(*args, batch.num_graphs), batch).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            self.losses.setdefault(label, []).append(float(torch.stack(losses).mean()))

        return epoch


def asked() -> argparse.Namespace:
    """Returns the options of the command line."""
    return options_of(
        __doc__,
        model="gine",
        hidden=64,
        layers=4,
        batch_size=128,
        graphs=8192,
        rounds=5,
        device="cpu",
        modes=["auto"],
        workers=[0, 1, 2],
        dynamic=False,
        deadline=1e9,
        json=Path,
    )


def contenders_of(
    training: Training, options: argparse.Namespace, until: float
) -> dict[str, Callable[[], object]]:
    """Returns PyG with each number of workers and this library in each mode, by name."""
    found = {}
    for workers in options.workers:
        name = f"PyG, {how_many(workers, 'worker')}"
        found[name] = training.pyg(name, workers)
    for mode in options.modes:
        suffix = "" if mode == "auto" else f", {mode}"
        found["static batches" + suffix] = training.static(
            "static batches" + suffix, options.device == "cuda", mode=mode
        )
    if options.dynamic and time.perf_counter() < until:
        workers = max(options.workers)
        label = f"PyG, {how_many(workers, 'worker')}, compile(dynamic=True)"
        found[label] = training.pyg(label, workers, dynamic=True)
    return found


def result_of(training: Training, timing: Timing, best: Timing, name: str) -> dict[str, Any]:
    """Returns a contender's rate, its speed relative to PyG's best per round, and its last loss."""
    low, middle, high = np.percentile(best.seconds / timing.seconds, [10, 50, 90])
    return {
        "graphs_per_second": float(np.median(len(training.ids) / timing.seconds)),
        "ratio_to_best_pyg": {"median": middle, "p10": low, "p90": high},
        "loss": training.losses[name][-1],
    }


def row_of(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    """Returns a row of the table."""
    ratio = result["ratio_to_best_pyg"]
    return (
        name,
        f"{result['graphs_per_second']:,.0f}",
        f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f})",
        f"{result['loss']:.6f}",
    )


def main() -> None:
    options = asked()
    until = time.perf_counter() + options.deadline
    training = Training(
        options.model,
        options.graphs,
        options.batch_size,
        options.hidden,
        options.layers,
        options.device,
    )
    timings = interleave(contenders_of(training, options, until), options.rounds, until=until)
    best = min(
        (name for name in timings if name.startswith("PyG")), key=lambda n: timings[n].median
    )
    results = {
        name: result_of(training, timing, timings[best], name) for name, timing in timings.items()
    }
    device = device_name(torch.device(options.device))
    print(
        f"{LABEL}{options.model}, hidden {options.hidden}, {how_many(options.layers, 'layer')}, "
        f"batch {options.batch_size}, {len(training.ids)} molecules an epoch, {device}, "
        f"{versions(STEPS)}"
    )
    rows = [row_of(name, result) for name, result in results.items()]
    print(table(("contender", "graphs/s", f"times {best}", "last loss"), rows))
    if options.json:
        write(options.json, {"options": vars(options), "device": device, **results})
    losses = [result["loss"] for result in results.values()]
    if max(losses) - min(losses) > LOSS_TOLERANCE:
        sys.exit(f"the losses differ: {losses}")


if __name__ == "__main__":
    main()
