"""Loading: graphs per second from the store into static batches, compared with PyG's DataLoader.

    python -m pytest bench/bench_loader.py --benchmark-enable     each by itself
    python -m bench.bench_loader [--rounds N] [--json FILE]       interleaved
    python -m bench.bench_loader --device cuda                    batches on the device

No model runs. One thread fills the batches, unless a row names workers. Every static contender
iterates over the training molecules in shuffled batches of 128; PyG's iterate over 4,096 of them.
"Store on the device" makes every batch from its ids; on a CPU this uses torch's own operations and
says nothing about a GPU, where collation is two launches, timed separately between two device
events per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

import staticgraph as sg
from bench.interleave import interleave
from bench.machine import write
from bench.options import options_of
from staticgraph.batches.collation.collate import fill
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.batches.slots.slots import Slot
from staticgraph.dryrun.operations import OperationCounter
from staticgraph.kernels.collate import LAUNCHES, collate_reference
from staticgraph.text.table import table

BATCH_SIZE = 128
HIV = "examples/data/hiv.npz"


class Loading:
    """The contenders over the training molecules of HIV."""

    def __init__(self, graphs_for_pyg: int = 4096, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.store = sg.datasets.open(HIV)
        self.ids = self.store.splits["train"]
        self.plan = sg.plan_buckets(self.store, batch_size=BATCH_SIZE)
        options: dict[str, Any] = {"indices": self.ids, "shuffle": True, "device": self.device}
        self.loader = sg.StaticLoader(self.store, self.plan, **options)
        self.moved = self.store.to(self.device)
        self.ids_loader = sg.StaticLoader(self.moved, self.plan, **options)
        batches = self.loader.batcher.epoch(0)
        self.filled = [(batch.bucket, batch.ids) for batch in batches]
        self.slot = Slot(self.loader.layouts, torch.device("cpu"), pinned=False)
        few = np.random.default_rng(0).permutation(self.ids)[:graphs_for_pyg]
        self.pyg_graphs = [self.store[i] for i in few.tolist()]

    def collate(self) -> int:
        """Fills one slot repeatedly: only the copy."""
        for bucket, ids in self.filled:
            fill(self.store, ids, self.loader.layouts[bucket], self.slot.arrays(bucket))
        return len(self.ids)

    def static(self) -> int:
        """Runs the whole loader: order, slots, batches."""
        self.loader.set_epoch(0)
        for _ in self.loader:
            pass
        self._synchronize()
        return len(self.ids)

    def from_ids(self) -> int:
        """Makes the same batches from a store on the device."""
        self.ids_loader.set_epoch(0)
        for batch in self.ids_loader:
            assert batch.graph_ids is not None  # the first access to an array makes all of them
        self._synchronize()
        return len(self.ids)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def on_device_s(self) -> list[float]:
        """Returns the seconds between device events around each batch's collation (CUDA only)."""
        self.ids_loader.set_epoch(0)
        pairs = []
        for batch in self.ids_loader:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            assert batch.graph_ids is not None
            end.record()
            pairs.append((start, end))
        self._synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    def crossing(self) -> dict[str, int]:
        """Returns the bytes that a full batch sends over the bus either way, and its launches."""
        layout = self.loader.layouts[self.filled[0][0]]
        tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8, device=self.device))
        ids = torch.full((layout.capacity.graphs,), -1, dtype=torch.int32, device=self.device)
        with OperationCounter() as counter:
            collate_reference(ids, *collate_arguments(self.moved, layout, tensors))
        return {
            "bytes a batch, filled on the host": layout.nbytes,
            "bytes a batch, ids alone": ids.nbytes,
            "bytes of the data set on the device": self.moved.nbytes,
            "bytes of it on the host": self.store.nbytes,
            "operations of the reference a batch": counter.operations.total(),
            "launches of the Triton kernels a batch": LAUNCHES,
        }

    def pyg(self, workers: int) -> Callable[[], int]:
        """Returns a function that runs PyG's DataLoader over Data objects in memory."""
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


def test_store_on_the_device(benchmark, loading):
    rate(benchmark, loading.from_ids)


@pytest.mark.parametrize("workers", [0, 2])
def test_pyg_loader(benchmark, loading, workers):
    rate(benchmark, loading.pyg(workers))


def main() -> None:
    arguments = options_of(
        __doc__, rounds=7, device="cuda" if torch.cuda.is_available() else "cpu", json=Path
    )
    torch.set_num_threads(1)
    loading = Loading(device=arguments.device)
    contenders = {
        "PyG DataLoader, 0 workers": loading.pyg(0),
        "PyG DataLoader, 1 worker": loading.pyg(1),
        "PyG DataLoader, 2 workers": loading.pyg(2),
        "StaticLoader": loading.static,
        "StaticLoader, store on the device": loading.from_ids,
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
    results["crossing"] = crossing = loading.crossing()
    print(table(("", "count"), [(name, f"{count:,}") for name, count in crossing.items()]))
    if loading.device.type == "cuda":
        low, middle, high = np.percentile(loading.on_device_s(), [10, 50, 90])
        results["collation, device seconds"] = {"median": middle, "p10": low, "p90": high}
        print(f"collation on the device: {1e6 * middle:.1f} us ({1e6 * low:.1f}-{1e6 * high:.1f})")
    if arguments.json:
        write(arguments.json, results)


if __name__ == "__main__":
    main()
