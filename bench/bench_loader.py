"""Loading: graphs per second from the store into static batches, compared with PyG's DataLoader.

    python -m bench.bench_loader [--rounds N] [--json FILE]       interleaved
    python -m bench.bench_loader --device cuda                    batches on the device

No model runs. One thread fills the batches, unless a row names workers. Every static contender
iterates over the training molecules in shuffled batches of 128; PyG's iterate over 4,096 of them.
"Store on the device" makes every batch from its ids; on a CPU this uses torch's own operations and
says nothing about a GPU, where collation is two launches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.loader import DataLoader

import staticgraph as sg
from bench import tables
from bench.interleave import interleave, spread
from bench.machine import machine, write
from bench.options import options_of
from bench.steps import DEVICE, HIV
from staticgraph.batches.collation.collate import fill
from staticgraph.batches.slots.slots import Slot
from staticgraph.epochs.batcher import BatchIds

BATCH_SIZE, GRAPHS_FOR_PYG = 128, 4096


def pass_over(loader: Any, device: torch.device) -> None:
    """Makes every batch of an epoch."""
    for batch in loader:
        if isinstance(batch, sg.StaticBatch):
            assert batch.graph_ids is not None  # the first access to an array makes all of them
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pyg(store: sg.GraphStore, ids: np.ndarray, workers: int) -> DataLoader:
    """Returns PyG's DataLoader over Data objects in memory."""
    graphs = [store[i] for i in np.random.default_rng(0).permutation(ids)[:GRAPHS_FOR_PYG].tolist()]
    return DataLoader(
        graphs,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def collate(
    store: sg.GraphStore, loader: sg.StaticLoader, batches: list[BatchIds], slot: Slot
) -> None:
    """Fills one slot with every batch: only the copy."""
    for batch in batches:
        fill(store, batch.ids, loader.layouts[batch.bucket], slot.of(batch.bucket).arrays)


def main() -> None:
    options = options_of(__doc__, rounds=7, device=DEVICE.type, json=Path)
    torch.set_num_threads(1)
    device, store = torch.device(options.device), sg.datasets.open(HIV)
    ids = store.splits["train"]
    plan = sg.plan_buckets(store, batch_size=BATCH_SIZE)
    static, from_ids = (
        sg.StaticLoader(source, plan, indices=ids, shuffle=True, device=device)
        for source in (store, store.to(device))
    )
    loaders = {
        "PyG DataLoader, 0 workers": pyg(store, ids, 0),
        "PyG DataLoader, 1 worker": pyg(store, ids, 1),
        "PyG DataLoader, 2 workers": pyg(store, ids, 2),
        "StaticLoader": static,
        "StaticLoader, store on the device": from_ids,
    }
    contenders: dict[str, Callable[[], None]] = {
        name: partial(pass_over, loader, device) for name, loader in loaders.items()
    }
    slot, batches = Slot(static.layouts, torch.device("cpu"), False), static.batcher.epoch(0)
    contenders["collate alone"] = partial(collate, store, static, batches, slot)
    results: dict[str, Any] = {}
    for name, seconds in interleave(contenders, options.rounds).items():
        graphs = GRAPHS_FOR_PYG if name.startswith("PyG") else len(ids)
        rates = spread(graphs / seconds)
        results[name] = {"graphs_per_second": rates.pop("median"), **rates}
    layout = static.layouts[batches[0].bucket]
    results["crossing"] = {
        "bytes a batch, filled on the host": layout.nbytes,
        "bytes a batch, ids alone": 4 * layout.capacity.graphs,
    }
    folder = {"loader": machine() | results}
    print(tables.loading(folder), tables.crossing(folder), sep="\n\n")
    if options.json:
        write(options.json, results)


if __name__ == "__main__":
    main()
