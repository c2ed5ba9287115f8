"""Loading: graphs a second from the store into static batches, beside PyG's DataLoader.

    python -m pytest bench/bench_loader.py --benchmark-enable     each by itself
    python -m bench.bench_loader [--rounds N] [--json FILE]       interleaved, with ratios

No model runs. One thread fills, unless workers are named. Every contender walks over the same
training molecules in batches of 128, shuffled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

import staticgraph as sg
from bench.interleave import interleave
from staticgraph.collate import fill
from staticgraph.slots import Slot
from staticgraph.table import table

BATCH_SIZE = 128
HIV = "examples/data/hiv.npz"


class Loading:
    """The contenders over the training molecules of HIV."""

    def __init__(self, graphs_for_pyg: int = 4096) -> None:
        self.store = sg.datasets.open(HIV)
        self.ids = self.store.splits["train"]
        self.plan = sg.plan_buckets(self.store, batch_size=BATCH_SIZE)
        self.loader = sg.StaticLoader(self.store, self.plan, indices=self.ids, shuffle=True)
        batches = self.loader.batcher.epoch(0)
        self.filled = [(batch.bucket, batch.ids) for batch in batches]
        self.slot = Slot(self.loader.layouts, torch.device("cpu"), pinned=False)
        few = np.random.default_rng(0).permutation(self.ids)[:graphs_for_pyg]
        self.pyg_graphs = [self.store[i] for i in few.tolist()]

    def collate(self) -> int:
        """Filling one slot over and over: the copy itself."""
        for bucket, ids in self.filled:
            fill(self.store, ids, self.loader.layouts[bucket], self.slot.arrays(bucket))
        return len(self.ids)

    def static(self) -> int:
        """The whole loader: order, slots, batches."""
        self.loader.set_epoch(0)
        for _ in self.loader:
            pass
        return len(self.ids)

    def pyg(self, workers: int) -> Callable[[], int]:
        """PyG's DataLoader over Data objects in memory."""
        loader = DataLoader(
            self.pyg_graphs,
            batch_size=BATCH_SIZE,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

        def run() -> int:
            for _ in loader:
                pass
            return len(self.pyg_graphs)

        return run


@pytest.fixture(scope="module")
def loading() -> Loading:
    return Loading()


def rate(benchmark, run: Callable[[], int]) -> None:
    graphs = benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    benchmark.extra_info["graphs_per_second"] = graphs / benchmark.stats.stats.median


def test_collate(benchmark, loading):
    rate(benchmark, loading.collate)


def test_static_loader(benchmark, loading):
    rate(benchmark, loading.static)


@pytest.mark.parametrize("workers", [0, 2])
def test_pyg_loader(benchmark, loading, workers):
    rate(benchmark, loading.pyg(workers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loading = Loading()
    contenders = {
        "PyG DataLoader, 0 workers": loading.pyg(0),
        "PyG DataLoader, 1 worker": loading.pyg(1),
        "PyG DataLoader, 2 workers": loading.pyg(2),
        "StaticLoader": loading.static,
        "collate alone": loading.collate,
    }
    graphs = {name: run() for name, run in contenders.items()}
    timings = interleave(contenders, arguments.rounds)
    rows, results = [], {}
    for name, timing in timings.items():
        rates = graphs[name] / timing.seconds
        low, middle, high = np.percentile(rates, [10, 50, 90])
        results[name] = {"graphs_per_second": middle, "p10": low, "p90": high}
        rows.append((name, f"{middle:,.0f}", f"{low:,.0f}", f"{high:,.0f}"))
    print(table(("loader", "graphs/s", "p10", "p90"), rows))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
