"""Does it pay over gloo to sum gradients while the backward still runs?

    python -m bench.bench_overlap [--ranks 2] [--hidden 64 300] [--save]

Two ways take turns in the same processes, with the same model and batch: all gradients in one flat
buffer after the backward, as :class:`staticgraph.distributed.reduction.Reduction` does it, and in
several buffers, each sent as soon as the backward has computed its last gradient (hooks after
accumulation, as in ``DistributedDataParallel``). Gloo computes its sum on the same cores, so the
answer depends on whether there are more cores than ranks; the output has both numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import staticgraph as sg
from bench.keep import keep
from staticgraph.models import build
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.table import table

RESULTS = Path(__file__).parent / "results" / "overlap.json"
HIV = "examples/data/hiv.npz"
BATCH_SIZE = 128
BUFFERS = (1, 2, 4, 8)


class Buffers:
    """Gradients in several flat buffers, last layers first.

    Args:
        parameters: the model's parameters.
        count: number of buffers.
        early: send each buffer when its last gradient is computed, instead of all at the end.
    """

    def __init__(self, parameters: list[nn.Parameter], count: int, early: bool) -> None:
        total, groups, filled = sum(p.numel() for p in parameters), [[]], 0
        for parameter in reversed(parameters):
            if filled >= total * len(groups) / count and len(groups) < count:
                groups.append([])
            groups[-1].append(parameter)
            filled += parameter.numel()
        self.groups = groups
        self.flats = [torch.zeros(sum(p.numel() for p in group)) for group in groups]
        self.left = [0] * len(groups)
        self.works: list[Any] = []
        self.hooks = []
        if early:
            for number, group in enumerate(groups):
                for parameter in group:
                    hook = parameter.register_post_accumulate_grad_hook(self._hook(number))
                    self.hooks.append(hook)

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            self.left[number] -= 1
            if not self.left[number]:
                self._send(number)

        return arrived

    def begin(self) -> None:
        self.left, self.works = [len(group) for group in self.groups], []

    def _send(self, number: int) -> None:
        flat, begin = self.flats[number], 0
        with torch.no_grad():
            for parameter in self.groups[number]:
                flat[begin : begin + parameter.numel()] = parameter.grad.view(-1)
                begin += parameter.numel()
        self.works.append(dist.all_reduce(flat, async_op=True))

    @torch.no_grad()
    def end(self) -> None:
        if not self.hooks:
            for number in range(len(self.groups)):
                self._send(number)
        for work in self.works:
            work.wait()
        for flat, group in zip(self.flats, self.groups, strict=True):
            begin = 0
            for parameter in group:
                parameter.grad.view(-1).copy_(flat[begin : begin + parameter.numel()])
                begin += parameter.numel()

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


def timed(rank: int, world_size: int, folder: str, hidden: int, rounds: int) -> None:
    """Measures the milliseconds per step of each way, in turns."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size,
        timeout=timedelta(minutes=5),
    )  # fmt: skip
    store = sg.datasets.open(HIV, progress=False)
    plan = sg.plan_buckets(store, BATCH_SIZE)
    loader = sg.StaticLoader(store, plan, shuffle=True, rank=rank, world_size=world_size)
    batch = next(iter(loader))
    torch.manual_seed(0)
    model = build("gine", store, hidden=hidden, layers=5)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step(buffers: Buffers | None) -> float:
        dist.barrier()
        begun = time.perf_counter()
        model.zero_grad(set_to_none=False)
        if buffers is not None:
            buffers.begin()
        graphs = len(batch.y)
        out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, graphs)
        F.binary_cross_entropy_with_logits(out.view_as(batch.y), batch.y).backward()
        if buffers is not None:
            buffers.end()
        return 1e3 * (time.perf_counter() - begun)

    ways = [("none", 0, False), ("after", 1, False), *(("during", k, True) for k in BUFFERS[1:])]
    found: dict[str, list[float]] = {}
    step(None)
    for number in range(rounds + 1):
        for name, count, early in ways:
            buffers = Buffers(parameters, count, early) if count else None
            spent = step(buffers)
            if buffers is not None:
                buffers.close()
            if number:
                found.setdefault(f"{name} {count}" if count else name, []).append(spent)
    if rank == 0:
        result = {
            "ranks": world_size, "cores": os.cpu_count(), "hidden": hidden,
            "bytes": sum(p.numel() * 4 for p in parameters),
            "ms": {name: statistics.median(times) for name, times in found.items()},
            "of_after": {
                name: quantiles(np.divide(times, found["after 1"]))
                for name, times in found.items()
            },
        }  # fmt: skip
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def quantiles(ratios: np.ndarray) -> dict[str, float]:
    """Returns the quantiles of ratios within a round."""
    p10, median, p90 = np.quantile(ratios, (0.1, 0.5, 0.9)).tolist()
    return {"p10": p10, "median": median, "p90": p90}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="*", default=[64, 300])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="also write to bench/results")
    args = parser.parse_args()
    found = []
    for hidden in args.hidden:
        with TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(
                timed, (args.ranks, folder, hidden, args.rounds), args.ranks
            )
            found.append(json.loads(Path(folder, "result.json").read_text()))
    names = list(found[0]["ms"])
    print(f"{args.ranks} ranks on {os.cpu_count()} cores; ms a step, median of {args.rounds}")
    print(
        table(
            ("hidden", "gradients", *names),
            [
                (f["hidden"], human_bytes(f["bytes"]), *(f"{f['ms'][n]:.1f}" for n in names))
                for f in found
            ],
        )
    )
    if args.save:
        keep(RESULTS, "rows", found)


if __name__ == "__main__":
    main()
