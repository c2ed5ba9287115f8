"""Training GINE end to end on the CPU: plain PyG, static batches, and static batches with kernels.

    OMP_NUM_THREADS=1 python bench/bench_kernels.py

The timed work is everything that a training step costs: loading, zero_grad, forward, loss, backward
and fused Adam, over real molecules (examples/data/hiv.npz, OGB's features). PyG runs with 0, 1 and
2 workers, which persist between its turns; every contender sees the same batches in the same order.
Contenders take turns of one block of batches (A B C A B C ...), so that a busy machine slows all of
them equally. The table has the median, 10th and 90th percentile over the blocks, CPU milliseconds
per step of the main process, and the speed relative to the best of PyG's three.
Losses are compared step by step with PyG's.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.loader import DataLoader

import staticgraph as sg
from staticgraph import models
from staticgraph.files.versions import STEPS, versions
from staticgraph.text.how_many import how_many

DATA = Path(__file__).parents[1] / "examples" / "data" / "hiv.npz"


def bce(out: Tensor, batch: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(out.view(-1), batch.y.view(-1), reduction="none")


class Contender:
    """A separate copy of the model and an endless stream of steps, each yielding its loss."""

    def __init__(self, name: str, steps: Callable[[Any, Any], Iterator[float]], make: Any) -> None:
        self.name = name
        self.losses: list[float] = []
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._steps = steps(*make())

    def run(self, steps: int, timed: bool = True) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.losses.append(next(self._steps))
        if timed:
            self.wall.append((time.perf_counter() - wall) / steps)
            self.cpu.append((time.process_time() - cpu) / steps)


def contenders(args: argparse.Namespace) -> list[Contender]:
    store = sg.datasets.open(DATA)
    graphs = args.block * args.batch_size
    chosen = np.random.default_rng(0).permutation(len(store))[:graphs]
    plan = sg.plan_buckets(store, batch_size=args.batch_size)

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = models.build("gine", store, hidden=args.hidden, layers=args.layers)
        return model.train(), torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    # One fixed epoch, so that all contenders see the same batches. Each of PyG's turns is also one
    # epoch, so that its workers cannot load ahead during another contender's turn.
    order = sg.StaticLoader(store, plan, indices=chosen, shuffle=True, pointers=True)
    batches = [ids.ids.tolist() for ids in order.batcher.epoch(0)]
    args.block = len(batches)
    data = {i: store[i] for ids in batches for i in ids}
    place = {i: k for k, i in enumerate(data)}
    lists = [[place[i] for i in ids] for ids in batches]

    def pyg(workers: int) -> Callable[..., Iterator[float]]:
        def steps(model: Any, optimizer: Any) -> Iterator[float]:
            loader = DataLoader(
                list(data.values()),
                batch_sampler=lists,  # pyright: ignore[reportArgumentType]
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            while True:
                for batch in loader:
                    optimizer.zero_grad()
                    out = model(
                        batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.num_graphs
                    )
                    loss = bce(out, batch).mean()
                    loss.backward()
                    optimizer.step()
                    yield loss.item()

        return steps

    def static(kernels: bool, workers: int) -> Callable[..., Iterator[float]]:
        def steps(model: Any, optimizer: Any) -> Iterator[float]:
            sg.convert(model, kernels=kernels)
            runner = sg.StaticGraphRunner(model, plan, "eager", loss=bce, optimizer=optimizer)
            loader = sg.StaticLoader(
                store, plan, indices=chosen, shuffle=True, pointers=kernels, num_workers=workers
            )
            while True:
                loader.set_epoch(0)
                for batch in loader:
                    yield runner.step(batch).item()

        return steps

    return [
        *(Contender(f"PyG, {how_many(w, 'worker')}", pyg(w), make) for w in range(3)),
        Contender("static", static(False, 0), make),
        Contender("static, kernels", static(True, 0), make),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--block", type=int, default=40, help="batches a turn")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    field = contenders(args)
    load = [os.getloadavg()[0]]
    for contender in field:
        contender.run(args.block, timed=False)  # compiles numba, starts workers, warms caches
    for _ in range(args.rounds):
        for contender in field:
            contender.run(args.block)
        load.append(os.getloadavg()[0])
    report(field, args, load)


def report(field: list[Contender], args: argparse.Namespace, load: list[float]) -> None:
    best = min(field[:3], key=lambda c: float(np.median(c.wall)))
    rows = []
    for contender in field:
        wall = np.array(contender.wall) * 1e3
        differ = np.abs(np.array(contender.losses) - np.array(field[0].losses))
        rows.append(
            {
                "contender": contender.name,
                "step_ms": float(np.median(wall)),
                "p10_ms": float(np.quantile(wall, 0.1)),
                "p90_ms": float(np.quantile(wall, 0.9)),
                "cpu_ms": float(np.median(contender.cpu)) * 1e3,
                "graphs_per_s": args.batch_size / float(np.median(contender.wall)),
                "speed": float(np.median(best.wall) / np.median(contender.wall)),
                "cpu_speed": min(float(np.median(c.cpu)) for c in field[:3])
                / float(np.median(contender.cpu)),
                "wall_ms": wall.tolist(),
                "loss_first_block_max_difference": float(differ[: args.block].max()),
                "last_loss": contender.losses[-1],
            }
        )
    print(
        f"GINE {args.layers}x{args.hidden}, batch {args.batch_size}, {args.rounds} rounds of "
        f"{args.block} batches, {args.threads} thread(s), load average {min(load):.1f} to "
        f"{max(load):.1f} on {os.cpu_count()} cores; speed against {best.name}"
    )
    for row in rows:
        print(
            f"{row['contender']:16s} {row['step_ms']:7.2f} ms [{row['p10_ms']:.2f}, "
            f"{row['p90_ms']:.2f}]  CPU {row['cpu_ms']:6.2f} ms  {row['graphs_per_s']:7.0f} "
            f"graphs/s  {row['speed']:.2f}x ({row['cpu_speed']:.2f}x by CPU)  loss differs by "
            f"{row['loss_first_block_max_difference']:.1e} at most, ends at {row['last_loss']:.4f}"
        )
    if args.out is not None:
        document = {
            "rows": rows,
            "load": load,
            "versions": versions(STEPS),
            "date": str(date.today()),
            "threads": args.threads,
        }
        args.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
