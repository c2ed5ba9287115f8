"""Packing: packs compared with the published listing, and graphs per second of streams.

    python -m bench.bench_packing [--rounds N] [--json FILE]       packs, and graphs per second
    python -m bench.bench_packing --overflow EPOCHS                how often exact batches overflow
    python -m bench.bench_packing --efforts [--only NAME ...]      fast and best, with the bound

Runs on one core of the host. Compilation happens before timing starts and is reported separately by
``staticgraph plan --json``. The generated sets have the number of graphs, the extremes and roughly
the number of distinct sizes of ogbg-code2 and ogbg-ppa, whose histograms are not published.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import tables
from bench.interleave import interleave
from bench.machine import machine, write
from bench.options import options_of
from bench.tuple_packing import HEURISTICS, pack_paper
from staticgraph.epochs.batcher import Batcher
from staticgraph.packing import pack_histogram, pack_stream
from staticgraph.packing.fill import THOROUGH
from staticgraph.plans.choose import plan_buckets
from staticgraph.plans.margin import exact_limits, overflow_rate
from staticgraph.plans.plan import sizes_of
from staticgraph.sizes.histogram import SizeHistogram
from tests.support.packing_problems import alike

DATA = Path(__file__).parent.parent / "tests" / "data" / "histograms"
SETS = sorted(path.stem for path in DATA.glob("*.csv"))
MAX_GRAPHS = 256


def load(name: str) -> SizeHistogram:
    return SizeHistogram.from_csv(DATA / f"{name}.csv")


def code2_like(seed: int = 0) -> SizeHistogram:
    """Generates 407,976 trees of up to 36,123 nodes, with about 2,100 distinct sizes."""
    rng = np.random.default_rng(seed)
    nodes = np.clip(rng.lognormal(4.55, 0.72, 407_976), 11, 1400).astype(np.int64)
    tail = np.geomspace(1400, 36_123, 830).astype(np.int64)
    nodes[: len(tail)] = tail
    return SizeHistogram.from_sizes(np.stack([nodes, nodes - 1], axis=1))


def ppa_like(seed: int = 0) -> SizeHistogram:
    """Generates 78,200 dense graphs: up to 300 nodes and 36,138 edges, about 36,000 sizes."""
    rng = np.random.default_rng(seed)
    nodes = np.clip(rng.normal(243, 25, 78_200), 50, 300).astype(np.int64)
    edges = 16 * (nodes * rng.lognormal(2.2, 0.32, len(nodes)) / 8).astype(np.int64)
    edges = np.clip(edges, 2 * nodes - 2, 36_138)
    nodes[0], edges[0] = 300, 36_138
    return SizeHistogram.from_sizes(np.stack([nodes, edges], axis=1))


# The number of graphs of sets like QM9 with hydrogens and ZINC-250k, whose histograms are not
# available.
ALIKE = {"qm9": 130_000, "zinc": 250_000}
GENERATED = {"code2-like": code2_like, "ppa-like": ppa_like}


def epochs_of(batch_size: int, exact: bool):
    """Returns a function that makes the next epoch of ogbg-molhiv's training split per call."""
    sizes = sizes_of(load("ogbg-molhiv_train"))
    plan = plan_buckets(sizes, batch_size, indices=np.arange(len(sizes)))
    batcher = Batcher(sizes, plan, exact=exact, shuffle=True)
    number = iter(range(10**9))
    return lambda: batcher.epoch(next(number))


def stream_of_molecules(graphs: int):
    """Returns a function that packs ogbg-molhiv's training molecules in a fixed random order."""
    sizes = sizes_of(load("ogbg-molhiv_train"))
    sizes = np.ascontiguousarray(sizes[np.random.default_rng(0).permutation(len(sizes))])
    limits = exact_limits(sizes, graphs, 0.01)
    most = int(1.25 * graphs)
    return lambda: pack_stream(sizes, limits, max_graphs=most)


def quality_and_speed(rounds: int) -> list[dict[str, Any]]:
    """Measures our packs and seconds per set, and counts those of the published listing."""
    rows = []
    for name in [*SETS, *GENERATED]:
        histogram = GENERATED[name]() if name in GENERATED else load(name)
        limits = histogram.maxima
        pack = partial(pack_histogram, histogram, limits, max_graphs=MAX_GRAPHS)
        packing = pack()
        row: dict[str, Any] = {
            "data": name, "graphs": histogram.num_graphs, "sizes": len(histogram.counts),
            "limits": limits.tolist(), "packs": packing.num_packs,
            "volume_bound": packing.volume_bound,
        }  # fmt: skip
        if name not in GENERATED:
            row["paper_packs"] = fewest_listed(histogram, limits, MAX_GRAPHS)
        seconds = interleave({"ours": pack}, rounds)["ours"].seconds
        row["ours_s"] = np.percentile(seconds, [10, 50, 90]).tolist()
        rows.append(row)
    return rows


def fewest_listed(histogram: SizeHistogram, limits: np.ndarray, most: int | None) -> int:
    """Returns the packs of the published listing with the best of its measures."""
    return min(
        pack_paper(histogram, limits, heuristic=measure, max_graphs=most).num_packs
        for measure in HEURISTICS
    )


def streams(rounds: int) -> list[dict[str, Any]]:
    """Measures the graphs per second of the epoch batcher and the streaming packer."""
    contenders = {
        "exact, 32": epochs_of(32, True),
        "exact, 128": epochs_of(128, True),
        "packed epoch, 128": epochs_of(128, False),
        "pack_stream, 32": stream_of_molecules(32),
        "pack_stream, 128": stream_of_molecules(128),
    }
    graphs = load("ogbg-molhiv_train").num_graphs
    return [
        {"what": name, "graphs_per_s": (graphs / np.percentile(t.seconds, [90, 50, 10])).tolist()}
        for name, t in interleave(contenders, rounds, warmup=2).items()
    ]


def overflow(epochs: int) -> list[dict[str, Any]]:
    """Measures how full exact batches are and how often one cannot be repaired, over epochs."""
    rows = []
    for name in ("ogbg-molhiv_train", "tu_NCI1", "tu_PROTEINS", "tu_COLLAB"):
        sizes = sizes_of(load(name))
        for batch_size in (32, 128, 256):
            plan = plan_buckets(sizes, batch_size, indices=np.arange(len(sizes)), num_buckets=1)
            capacity = plan.capacities[0]
            limits = np.array([capacity.node_limit, capacity.edge_limit])
            rate = overflow_rate(sizes, batch_size, limits, epochs, seed=12_345)
            batches = -(-len(sizes) // batch_size)
            filled = sizes.sum(axis=0) / (batches * np.array([capacity.nodes, capacity.edges]))
            full = batch_size * sizes.mean(axis=0) / np.array([capacity.nodes, capacity.edges])
            rows.append(
                {
                    "data": name, "batch_size": batch_size, "margin": plan.margin,
                    "capacity": [capacity.nodes, capacity.edges], "filled": filled.tolist(),
                    "full_batches": full.tolist(), "overflowed": round(rate * epochs * batches),
                    "batches": epochs * batches,
                }
            )  # fmt: skip
    return rows


GRAPHS_A_PACK = (2, 2.5, 3, 5, 10)
# Limits of the published tables: nodes, edges and graphs per pack.
PUBLISHED: dict[str, list[tuple[list[int], int | None]]] = {
    "ogbg-molhiv_train": [([222, 502], 256)],
    "ogbg-molpcba_train": [([313, 636], 256)],
    "pcqm4mv2_train_APPROX": [
        ([20, 54], 256),
        *(([n, e], None) for n, e in ((30, 62), (30, 64), (31, 62), (45, 96), (48, 100), (20, 54))),
    ],
}


def limits_of(name: str, histogram: SizeHistogram) -> list[tuple[list[int], int | None]]:
    """Returns the paper's limits, then limits for ``GRAPHS_A_PACK`` mean graphs per pack.

    Each comes with the maximum number of graphs per pack, or None.
    """
    chosen = list(PUBLISHED.get(name, ()))
    mean = histogram.totals / histogram.num_graphs
    for graphs in GRAPHS_A_PACK:
        limits = np.maximum(np.ceil(graphs * mean).astype(np.int64), histogram.maxima)
        chosen.append((limits.tolist(), None))
    return [each for k, each in enumerate(chosen) if each not in chosen[:k]]


def efforts(names: list[str]) -> list[dict[str, Any]]:
    """Compares the packs of ``fast`` and ``best`` with the bound that ``best`` proves.

    The seconds of ``fast`` are processor time of a second run; those of ``best`` are wall-clock
    time, which its time limit counts.
    """
    rows = []
    for name in names or [*SETS, *ALIKE]:
        histogram = alike(name, ALIKE[name]) if name in ALIKE else load(name)
        for limits, most in limits_of(name, histogram):
            pack_histogram(histogram, limits, max_graphs=most)
            begin = time.process_time()
            fast = pack_histogram(histogram, limits, max_graphs=most)
            middle, clock = time.process_time(), time.perf_counter()
            best = pack_histogram(histogram, limits, max_graphs=most, effort="best")
            end = time.perf_counter()
            best.check()
            assert best.proven is not None
            rows.append(
                {
                    "data": name, "limits": limits, "max_graphs": most,
                    "graphs_a_pack": round(histogram.num_graphs / best.num_packs, 2),
                    "listing": fewest_listed(histogram, np.array(limits), most),
                    "fast": fast.num_packs, "best": best.num_packs, "proven": best.proven,
                    "fast_over": round(fast.num_packs / best.proven - 1, 5),
                    "best_over": round(best.num_packs / best.proven - 1, 5),
                    "fast_cpu_s": round(middle - begin, 4), "best_s": round(end - clock, 2),
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    args = options_of(__doc__, rounds=9, overflow=int, efforts=False, only=[], json=Path)
    found: dict[str, Any]
    if args.efforts:
        found = {"efforts": efforts(args.only)}
        print(json.dumps(found["efforts"], indent=1))
    elif args.overflow:
        found = {"epochs": args.overflow, "overflow": overflow(args.overflow)}
        print(tables.overflow({"overflow": machine() | found}))
    else:
        found = {"packing": quality_and_speed(args.rounds)}
        found["streams"] = streams(5 * args.rounds)
        print(json.dumps(found["packing"], indent=1))
        for row in found["streams"]:
            low, middle, high = (rate / 1e6 for rate in row["graphs_per_s"])
            print(f"{row['what']:18} {middle:5.1f} million graphs a second ({low:.1f}-{high:.1f})")
    if args.json:
        write(args.json, found | {"settings": [effort._asdict() for effort in THOROUGH]})


if __name__ == "__main__":
    main()
