"""Stores of many molecules: convert, plan, an epoch's order, and reading from a cold cache.

    python -m bench.bench_large order [--millions 1 10]     an epoch's order: time and peak memory
    python -m bench.bench_large convert [--millions 1] --out DIR    converted, opened, planned
    python -m bench.bench_large read --data DIR             cold: in order, in blocks, at random

The molecules are those of HIV, repeated. Each measurement of memory is a process of its own, whose
peak is that of the system's books; what all processes need (torch, compiled loops) is measured
with 100,000 graphs and taken off, so that what is left grows with the graphs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import staticgraph as sg
from staticgraph.datasets.convert import convert
from staticgraph.epochs.batcher import Batcher
from staticgraph.sizes.whole_numbers import stacked
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.table import table

HIV = "examples/data/hiv.npz"
BATCH_SIZE = 128
BASE = 100_000


class Sizes:
    """What a batcher and a plan read of a store, for as many molecules as are asked for."""

    def __init__(self, graphs: int) -> None:
        own = sg.datasets.open(HIV, progress=False).sizes
        times = -(-graphs // len(own))
        self.narrow_sizes = np.tile(stacked(list(own.T)), (times, 1))[:graphs]

    @property
    def sizes(self) -> np.ndarray:
        return self.narrow_sizes

    @property
    def histogram(self) -> Any:
        return GraphColumns.histogram.func(self)  # type: ignore[attr-defined]

    schema = type("Schema", (), {"components": ("num_nodes", "num_edges")})()


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def order_of(graphs: int, shuffle: Any) -> dict[str, Any]:
    """An epoch's batches of so many graphs, in this process."""
    sizes = Sizes(graphs)
    plan = sg.plan_buckets(Sizes(BASE).narrow_sizes.astype(np.int64), BATCH_SIZE)
    small = Batcher(Sizes(5000), plan, shuffle=shuffle)  # compiled, or read from the cache
    small.epoch(0)
    begun = time.perf_counter()
    histogram = sg.SizeHistogram.from_sizes(sizes.narrow_sizes)
    counted = time.perf_counter() - begun
    begun = time.perf_counter()
    batcher = Batcher(sizes, plan, shuffle=shuffle)
    made = time.perf_counter() - begun
    begun = time.perf_counter()
    batches = batcher.batches(0)
    taken = time.perf_counter() - begun
    return {
        "graphs": histogram.num_graphs, "histogram_s": counted, "batcher_s": made,
        "order_s": taken, "batches": len(batches), "peak_mib": peak_mib(),
        "overflowed": batcher.stats.overflowed, "split": batcher.stats.split,
    }  # fmt: skip


def orders(millions: list[float]) -> list[dict[str, Any]]:
    found = []
    for shuffle in ("random", "blocks"):
        base = None
        for graphs in (BASE, *(round(m * 1e6) for m in millions)):
            told = json.loads(_child("--graphs", str(graphs), "--shuffle", shuffle))
            base = told["peak_mib"] if base is None else base
            told |= {"shuffle": shuffle, "own_mib": told["peak_mib"] - base}
            found.append(told)
    rows = []
    for told in found:
        grown = max(1, told["graphs"] - BASE)
        rows.append(
            (told["shuffle"], f"{told['graphs']:,}", f"{told['histogram_s']:.2f}",
             f"{told['batcher_s'] + told['order_s']:.2f}", f"{told['peak_mib']:,.0f}",
             f"{told['own_mib'] * 2**20 / grown:.1f}")
        )  # fmt: skip
    print(table(("order", "graphs", "histogram s", "order s", "peak MiB", "bytes a graph"), rows))
    return found


def _child(*more: str) -> str:
    command = [sys.executable, "-m", "bench.bench_large", "one", *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def converted(millions: float, out: Path, workers: int) -> dict[str, Any]:
    """HIV, again and again, to a store in shards; opened and planned."""
    one = out / "hiv"
    if not one.exists():
        sg.datasets.open(HIV, progress=False).save(one)
    times = round(millions * 1e6 / len(sg.GraphStore.load(one)))
    begun = time.perf_counter()
    store = convert([one] * times, out / "many", workers=workers, merged=False, progress=False)
    taken = time.perf_counter() - begun
    begun = time.perf_counter()
    store = sg.GraphStore.load(out / "many", verify=False)
    opened = time.perf_counter() - begun
    begun = time.perf_counter()
    digest = store.histogram.digest
    counted = time.perf_counter() - begun
    begun = time.perf_counter()
    plan = sg.plan_buckets(store, BATCH_SIZE)
    planned = time.perf_counter() - begun
    found = {
        "graphs": len(store), "shards": len(store.shards.shards), "bytes": store.nbytes,
        "convert_s": taken, "graphs_per_s": len(store) / taken, "open_s": opened,
        "histogram_s": counted, "plan_s": planned, "peak_mib": peak_mib(), "digest": digest,
        "efficiency": plan.efficiency,
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    return found


def drop_from_cache(folder: Path) -> None:
    """What this user may ask of the system: pages of files that nobody maps."""
    for path in folder.rglob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(data: Path, rounds: int) -> list[dict[str, Any]]:
    """Batches of a store that is not in memory, each order in processes of its own, alternating."""
    orders_ = ("sequential", "blocks", "random")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in orders_}
    for _ in range(rounds):
        for name in orders_:
            drop_from_cache(data)
            found[name].append(json.loads(_child("--data", str(data), "--shuffle", name)))
    rows, told = [], []
    for name in orders_:
        rates = [each["graphs_per_s"] for each in found[name]]
        told.append({"order": name, "graphs_per_s": rates})
        rows.append((name, f"{np.median(rates):,.0f}", " ".join(f"{r:,.0f}" for r in rates)))
    base = np.median(told[0]["graphs_per_s"])
    for each, row in zip(told, rows, strict=True):
        each["share"] = float(np.median(each["graphs_per_s"]) / base)
        print(f"{row[0]:<12} {row[1]:>12} graphs/s  {each['share']:.1%}   ({row[2]})")
    return told


def read_once(data: Path, shuffle: str) -> dict[str, Any]:
    """One epoch's batches, or a stretch of them where the order is random."""
    store = sg.GraphStore.load(data, verify=False)
    kinds = {"sequential": False, "blocks": "blocks", "random": True}
    plan = sg.plan_buckets(sg.datasets.open(HIV, progress=False), BATCH_SIZE)
    plan = sg.BucketPlan.of(plan.capacities)
    loader = sg.StaticLoader(
        store, plan, exact=False, shuffle=kinds[shuffle], num_workers=1, oversize="skip"
    )
    coming = iter(loader)
    next(coming)  # compiled
    begun, graphs, until = time.perf_counter(), 0, time.perf_counter() + 60
    for batch in coming:
        graphs += batch.real.graphs
        if time.perf_counter() > until:
            break
    return {"graphs": graphs, "graphs_per_s": graphs / (time.perf_counter() - begun)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("order", "convert", "read", "one"))
    parser.add_argument("--millions", type=float, nargs="*", default=[1.0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--graphs", type=int)
    parser.add_argument("--shuffle")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "one":
        if args.data:
            told: Any = read_once(args.data, args.shuffle)
        else:
            told = order_of(args.graphs, True if args.shuffle == "random" else "blocks")
        print(json.dumps(told))
        return
    if args.what == "order":
        found: Any = orders(args.millions)
    elif args.what == "convert":
        found = converted(args.millions[0], args.out, args.workers)
    else:
        found = read(args.data, args.rounds)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
