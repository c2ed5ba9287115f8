"""Stores of many molecules: conversion, planning, an epoch's order, and reads from a cold cache.

    python -m bench.bench_large order [--millions 1 10]     an epoch's order: time and peak memory
    python -m bench.bench_large convert [--millions 1] --out DIR    converted, opened, planned
    python -m bench.bench_large read --data DIR/many        cold: in order, in blocks, at random

The molecules are those of HIV, repeated. Each measurement of memory runs in a separate process,
whose peak is the one that the operating system reports. The memory that all processes need (torch,
compiled loops) is measured with 100,000 graphs and subtracted, so that the rest grows with the
graphs. Before a cold read, the page cache is dropped for the store's files; a separate process
counts how many bytes came from the device, and every order is read for the same number of seconds.
With ``--save``, each part is written to ``bench/results/large.json`` separately.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import staticgraph as sg
from bench.keep import keep
from bench.outofcore_process import device_bytes
from staticgraph.datasets.convert import convert
from staticgraph.epochs.batcher import Batcher
from staticgraph.sizes.whole_numbers import stacked
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.table import table

RESULTS = Path(__file__).parent / "results" / "large.json"
HIV = "examples/data/hiv.npz"
BATCH_SIZE = 128
BASE = 100_000


class Sizes:
    """The parts of a store that a batcher and a plan read, for any number of molecules."""

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


def order_of(graphs: int, shuffle: Any, plan: sg.BucketPlan) -> dict[str, Any]:
    """Measures the batches of one epoch over ``graphs`` graphs, in this process."""
    sizes = Sizes(graphs)
    small = Batcher(Sizes(5000), plan, shuffle=shuffle)  # compiled, or read from the cache
    small.epoch(0)
    begun = time.perf_counter()
    histogram = sg.SizeHistogram.from_sizes(sizes.narrow_sizes)
    counted = time.perf_counter() - begun
    begun, cpu = time.perf_counter(), time.process_time()
    batcher = Batcher(sizes, plan, shuffle=shuffle)
    made = time.perf_counter() - begun
    begun = time.perf_counter()
    batches = batcher.batches(0)
    taken = time.perf_counter() - begun
    cpu = time.process_time() - cpu
    return {
        "graphs": histogram.num_graphs, "histogram_s": counted, "batcher_s": made,
        "order_s": taken, "cpu_s": cpu, "batches": len(batches), "peak_mib": peak_mib(),
        "overflowed": batcher.stats.overflowed, "split": batcher.stats.split,
    }  # fmt: skip


def orders(millions: list[float], shuffles: list[str]) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"  # made here, where its memory is not counted
        sg.plan_buckets(sg.datasets.open(HIV, progress=False), BATCH_SIZE).save(plan)
        for shuffle in shuffles:
            base = None
            for graphs in (BASE, *(round(m * 1e6) for m in millions)):
                options = ("--graphs", str(graphs), "--shuffle", shuffle, "--plan", str(plan))
                told = json.loads(_child(*options))
                base = told["peak_mib"] if base is None else base
                told |= {"shuffle": shuffle, "own_mib": told["peak_mib"] - base}
                found.append(told)
    rows = []
    for told in found:
        grown = max(1, told["graphs"] - BASE)
        rows.append(
            (told["shuffle"], f"{told['graphs']:,}", f"{told['histogram_s']:.2f}",
             f"{told['batcher_s'] + told['order_s']:.2f}", f"{told['cpu_s']:.2f}",
             f"{told['peak_mib']:,.0f}",
             f"{told['own_mib'] * 2**20 / grown:.1f}")
        )  # fmt: skip
    print(
        table(
            ("order", "graphs", "histogram s", "order s", "CPU s", "peak MiB", "bytes a graph"),
            rows,
        )
    )
    return found


def _child(*more: str) -> str:
    command = [sys.executable, "-m", "bench.bench_large", "one", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def converted(millions: float, out: Path, workers: int) -> dict[str, Any]:
    """Converts HIV, repeated, to a store in shards, then opens it and makes a plan."""
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
    """Drops the files' pages from the page cache; without root, only those that are not mapped."""
    for path in folder.rglob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(data: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Reads batches of a store that is not in memory, in each order.

    Every read is a separate process, and the orders alternate; the share relative to the order on
    disk is computed within a round.
    """
    orders_ = ("sequential", "blocks", "random")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in orders_}
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        sg.plan_buckets(sg.datasets.open(HIV, progress=False), BATCH_SIZE).save(plan)
        options = ("--data", str(data), "--plan", str(plan), "--seconds", str(seconds))
        for _ in range(rounds):
            for name in orders_:
                drop_from_cache(data)
                found[name].append(json.loads(_child(*options, "--shuffle", name)))
    told = []
    for name in orders_:
        pairs = zip(found[name], found["sequential"], strict=True)
        each: dict[str, Any] = {
            key: [turn[key] for turn in found[name]]
            for key in ("graphs", "graphs_per_s", "cpu_s", "device_mib")
        }
        each["shares"] = [one["graphs_per_s"] / base["graphs_per_s"] for one, base in pairs]
        each["share"] = float(np.median(each["shares"]))
        told.append({"order": name, **each})
        rates = " ".join(f"{rate:,.0f}" for rate in each["graphs_per_s"])
        print(f"{name:<12} {np.median(each['graphs_per_s']):>12,.0f} graphs/s  "
              f"{each['share']:.1%}   ({rates})")  # fmt: skip
    return told


def read_once(data: Path, shuffle: str, plan: sg.BucketPlan, seconds: float) -> dict[str, Any]:
    """Reads batches of one epoch, for at most ``seconds`` seconds."""
    plan = sg.BucketPlan.of(plan.capacities, plan.batch_size)  # was made for HIV's molecules once
    kinds: dict[str, Any] = {"sequential": False, "blocks": "blocks", "random": True}
    compiled = sg.StaticLoader(sg.datasets.open(HIV, progress=False), plan, num_workers=1)
    next(iter(compiled))  # compiles the loops, on other files
    store = sg.GraphStore.load(data, verify=False)
    loader = sg.StaticLoader(store, plan, shuffle=kinds[shuffle], num_workers=1)
    loader.batcher.epoch(0)
    before, cpu = device_bytes("read"), time.process_time()
    begun, graphs = time.perf_counter(), 0
    for batch in loader:
        graphs += batch.real.graphs
        if time.perf_counter() > begun + seconds:
            break
    taken = time.perf_counter() - begun
    return {
        "graphs": graphs, "graphs_per_s": graphs / taken, "cpu_s": time.process_time() - cpu,
        "device_mib": (device_bytes("read") - before) / 2**20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("order", "convert", "read", "one"))
    parser.add_argument("--millions", type=float, nargs="*", default=[1.0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--graphs", type=int)
    parser.add_argument("--shuffle", nargs="*", default=["random", "blocks"])
    parser.add_argument("--seconds", type=float, default=20.0, help="read: of each turn")
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="also write to bench/results")
    args = parser.parse_args()
    if args.what == "one":
        (shuffle,), plan = args.shuffle, sg.BucketPlan.load(args.plan)
        if args.data:
            told: Any = read_once(args.data, shuffle, plan, args.seconds)
        else:
            told = order_of(args.graphs, True if shuffle == "random" else "blocks", plan)
        print(json.dumps(told))
        return
    if args.what == "order":
        found: Any = orders(args.millions, args.shuffle)
    elif args.what == "convert":
        found = converted(args.millions[0], args.out, args.workers)
    else:
        found = read(args.data, args.rounds, args.seconds)
    if args.save:
        keep(RESULTS, args.what, found)


if __name__ == "__main__":
    main()
