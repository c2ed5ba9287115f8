"""Several processes: what a step sends and waits for, and how evenly ranks are filled.

    python -m bench.bench_distributed [--ranks 1 2 4] [--steps N] [--json FILE]

The balance is from sizes and plan alone, for 8, 64 and 512 ranks, over the training molecules of
HIV and over sixteen times as many. The times are of processes over gloo on one CPU, a thread each,
GINE at 128 graphs a rank: processes beyond the cores share them, so a ratio there says nothing of a
machine with enough. Waiting is what a rank spends in the sum of gradients.
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
from staticgraph.distributed.reduction import Reduction
from staticgraph.epochs.balance import balance_of_plan
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.table import table

HIV = "examples/data/hiv.npz"
BATCH_SIZE = 128
RANKS = (8, 64, 512)
TIMES_AS_MANY = 16
WARM = 3


def balances() -> list[dict[str, Any]]:
    """Efficiency of the ranks' balance, by data and number of ranks."""
    store = sg.datasets.open(HIV, progress=False)
    train = store.splits["train"]
    plan = sg.plan_buckets(store, BATCH_SIZE, indices=train)
    own = store.sizes[train][:, :2]
    found = []
    for times in (1, TIMES_AS_MANY):
        sizes = np.tile(own, (times, 1))
        for balance in balance_of_plan(sizes, plan, RANKS, shuffle=True):
            found.append(
                {
                    "graphs": len(sizes),
                    "ranks": balance.world_size,
                    "steps": balance.steps,
                    "full_steps": balance.full,
                    "nodes": balance.efficiency[0],
                    "nodes_of_full_steps": balance.full_efficiency[0],
                }
            )
    return found


def timed(rank: int, world_size: int, folder: str, steps: int) -> None:
    """Steps of one rank, with the time in sums of gradients."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size,
        timeout=timedelta(minutes=5),
    )  # fmt: skip
    store = sg.datasets.open(HIV, progress=False)
    plan = sg.plan_buckets(store, BATCH_SIZE, indices=store.splits["train"])
    torch.manual_seed(0)
    model = sg.models.build("gine", store, hidden=64, layers=4)
    runner = sg.StaticGraphRunner(
        model,
        plan,
        "eager",
        loss=lambda out, batch: F.binary_cross_entropy_with_logits(
            out.view_as(batch.y), batch.y, reduction="none"
        ),
        optimizer=torch.optim.Adam(model.parameters(), fused=True),
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
    for number, batch in enumerate(loader):
        if number == WARM:
            dist.barrier()
            waited[0], taken = 0.0, time.perf_counter()
        if number == WARM + steps:
            break
        runner.step(batch)
    taken = time.perf_counter() - taken
    if rank == 0:
        averaging = runner._steps.averaging
        assert averaging is not None
        result = {
            "ranks": world_size,
            "ms_a_step": 1e3 * taken / steps,
            "graphs_per_s": world_size * BATCH_SIZE * steps / taken,
            "bytes_a_step": averaging.reduction.nbytes,
            "waiting": waited[0] / taken,
        }
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    balance, times = balances(), []
    for world_size in args.ranks:
        with TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(timed, (world_size, folder, args.steps), world_size)
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
                 human_bytes(t["bytes_a_step"]), f"{t['waiting']:.1%}")
                for t in times
            ],
        )
    )  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps({"balance": balance, "times": times}, indent=1))


if __name__ == "__main__":
    main()
