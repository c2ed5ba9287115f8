"""Several processes: what a step sends and waits for, and how evenly ranks are filled.

    python -m bench.bench_distributed [--ranks 1 2 4] [--steps N] [--device cuda] [--json FILE]

The balance is computed from the sizes and the plan alone, for 8, 64 and 512 ranks, over the
training molecules of HIV and over sixteen times as many. The times are of GINE at 128 graphs per
rank. On a CPU, the processes use gloo and one thread each; if there are more processes than cores,
they share the cores, so the ratios say nothing about a machine with enough cores, and waiting is
the time that a rank spends in the sum of gradients. On CUDA, each rank has its own device and
NCCL's sum is inside the recorded step, so its cost is the step's time compared with that of one
rank. Numbers of ranks that exceed the number of devices are skipped with a message.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import staticgraph as sg
from bench.machine import write
from bench.options import options_of
from staticgraph.distributed.reduction import Reduction
from staticgraph.epochs.batcher import Batcher
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.table import table

HIV = "examples/data/hiv.npz"
BATCH_SIZE = 128
RANKS = (8, 64, 512)
TIMES_AS_MANY = 16
WARM = 3


def balances() -> list[dict[str, Any]]:
    """Returns the efficiency of the ranks' balance, by data and number of ranks."""
    store = sg.datasets.open(HIV, progress=False)
    train = store.splits["train"]
    plan = sg.plan_buckets(store, BATCH_SIZE, indices=train)
    own = store.sizes[train][:, :2]
    found = []
    for times in (1, TIMES_AS_MANY):
        sizes = np.tile(own, (times, 1))
        for ranks in RANKS:
            rows = Batcher(sizes, plan, world_size=ranks, shuffle=True).rows(0)
            full = rows[(rows[:, :, 0] > 0).all(axis=1)]
            found.append(
                {
                    "graphs": len(sizes),
                    "ranks": ranks,
                    "steps": len(rows),
                    "full_steps": len(full),
                    "nodes": evenness(rows),
                    "nodes_of_full_steps": evenness(full),
                }
            )
    return found


def evenness(rows: np.ndarray) -> float:
    """The mean rank's nodes over the fullest rank's, over steps ``[steps, ranks, 1 + C]``."""
    nodes = rows[:, :, 1]
    return float(nodes.mean(axis=1).sum() / nodes.max(axis=1).sum())


def timed(rank: int, world_size: int, folder: str, options: argparse.Namespace) -> None:
    """Times the steps of one rank, and on a CPU the time in sums of gradients."""
    torch.set_num_threads(1)
    steps, on_cuda = options.steps, options.device == "cuda"
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size,
        timeout=timedelta(minutes=5),
    )  # fmt: skip
    store = sg.datasets.open(HIV, progress=False)
    plan = sg.plan_buckets(store, BATCH_SIZE, indices=store.splits["train"])
    torch.manual_seed(0)
    model = sg.models.build("gine", store, hidden=options.hidden, layers=options.layers).to(device)
    runner = sg.StaticGraphRunner(
        model,
        plan,
        "cuda-graph" if on_cuda else "eager",
        loss=lambda out, batch: F.binary_cross_entropy_with_logits(
            out.view_as(batch.y), batch.y, reduction="none"
        ),
        optimizer=torch.optim.Adam(model.parameters(), fused=True, capturable=on_cuda),
        distributed=dist.distributed_c10d._get_default_group(),
    )
    waited, call = [0.0], Reduction.__call__

    def waiting(self: Reduction, *args: Any) -> torch.Tensor:
        begun = time.perf_counter()
        result = call(self, *args)
        waited[0] += time.perf_counter() - begun
        return result

    Reduction.__call__ = waiting
    taken = 0.0
    loader = runner.loader(store, indices=store.splits["train"], shuffle=True)
    if on_cuda:
        runner.warmup(store, progress=False)
    for number, batch in enumerate(loader):
        if number == WARM:
            _settle(on_cuda)
            waited[0], taken = 0.0, time.perf_counter()
        if number == WARM + steps:
            break
        runner.step(batch)
    _settle(on_cuda)
    taken = time.perf_counter() - taken
    if rank == 0:
        averaging = runner.steps.averaging
        assert averaging is not None
        result = {
            "ranks": world_size,
            "ms_a_step": 1e3 * taken / steps,
            "graphs_per_s": world_size * BATCH_SIZE * steps / taken,
            "bytes_a_step": averaging.reduction.nbytes,
            "waiting": None if on_cuda else waited[0] / taken,
        }
        Path(folder, "result.json").write_text(json.dumps(result))
    runner.close()  # otherwise the group waits for the graphs that hold its sums
    dist.destroy_process_group()


def _settle(on_cuda: bool) -> None:
    """Waits until every rank is here and its device is idle."""
    if on_cuda:
        torch.cuda.synchronize()
    dist.barrier()


def main() -> None:
    args = options_of(
        __doc__,
        ranks=[1, 2, 4],
        steps=20,
        hidden=64,
        layers=4,
        device="cpu",
        deadline=1e9,
        json=Path,
    )
    until = time.monotonic() + args.deadline
    balance, times = balances(), []
    for world_size in args.ranks:
        if args.device == "cuda" and world_size > torch.cuda.device_count():
            print(f"{world_size} ranks: left out, {torch.cuda.device_count()} GPUs are here")
            continue
        if time.monotonic() > until:
            print(f"{world_size} ranks: left out, the time is over")
            continue
        with TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(timed, (world_size, folder, args), world_size)
            times.append(json.loads(Path(folder, "result.json").read_text()))
    print(
        table(
            ("graphs", "ranks", "steps", "full", "nodes, all steps", "nodes, full steps"),
            [
                (f"{b['graphs']:,}", b["ranks"], b["steps"], b["full_steps"],
                 f"{b['nodes']:.1%}", f"{b['nodes_of_full_steps']:.1%}")
                for b in balance
            ],
        )
    )  # fmt: skip
    print(
        table(
            ("ranks", "ms a step", "graphs/s", "sent a step", "waiting"),
            [
                (t["ranks"], f"{t['ms_a_step']:.1f}", f"{t['graphs_per_s']:,.0f}",
                 human_bytes(t["bytes_a_step"]),
                 "in the step" if t["waiting"] is None else f"{t['waiting']:.1%}")
                for t in times
            ],
        )
    )  # fmt: skip
    if args.json:
        write(args.json, {"balance": balance, "times": times})


if __name__ == "__main__":
    main()
