"""A padder as ``collate_fn``, compared with PyG's own collation of the same graphs, in turn.

    python -m bench.padder [--rounds N] [--json FILE]

No model runs, and no worker process: every contender makes one batch of 128 training molecules of
HIV per round, on one thread, by processor time. "A list" starts from the graphs that PyG's
collation starts from, "a Batch" from what it made, "a GraphStore" from graph numbers, as torch's
``DataLoader`` gives them.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Batch

import staticgraph as sg
from bench.interleave import interleave
from bench.machine import machine, write
from bench.options import options_of
from staticgraph.text.table import table

BATCH_SIZE = 128


def main() -> None:
    """Prints the table."""
    args = options_of(__doc__, rounds=1000, json=Path)
    torch.set_num_threads(1)
    store = sg.datasets.open("examples/data/hiv.npz")
    train = store.splits["train"]
    plan = sg.plan_stream(store.sizes[train], BATCH_SIZE, schema=store.schema)
    padder = sg.Padder(plan, overflow="split")
    ids = np.random.default_rng(0).choice(train, BATCH_SIZE, replace=False).tolist()
    graphs = [store[each] for each in ids]
    batch = Batch.from_data_list(graphs)
    timed = interleave(
        {
            "PyG's Batch.from_data_list": lambda: Batch.from_data_list(graphs),
            "Padder, a list": lambda: padder(graphs),
            "Padder, a Batch": lambda: padder(batch),
            "Padder, PyG's collation included": lambda: padder(Batch.from_data_list(graphs)),
            "Padder, a GraphStore": lambda: padder(store.__getitems__(ids)),
        },
        args.rounds,
        warmup=5,
        clock=time.process_time,
    )
    rows = []
    for name, timing in timed.items():
        low, median, high = np.percentile(timing.ratio, [10, 50, 90])
        us = f"{1e6 * timing.median:,.0f}"
        rows.append((name, us, f"{median:.2f}", f"{low:.2f} to {high:.2f}"))
    print(table(("contender", "us", "times PyG", "10% to 90% of the rounds"), rows))
    print(machine()["processor"])
    if args.json:
        medians = {name: timing.median for name, timing in timed.items()}
        write(args.json, {"seconds": medians})


if __name__ == "__main__":
    main()
