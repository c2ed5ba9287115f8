"""Packing: packs and seconds compared with the paper's algorithm, and graphs per second of streams.

    python -m pytest bench/bench_packing.py --benchmark-enable     each by itself
    python -m bench.bench_packing [--rounds N] [--json FILE]       interleaved
    python -m bench.bench_packing --overflow EPOCHS                how often exact batches overflow
    python -m bench.bench_packing --efforts [--only NAME ...]      fast and best, with the bound

Runs on one core of the host. Compilation happens before timing starts and is reported separately by
``staticgraph plan --json``. The generated sets have the number of graphs, the extremes and roughly
the number of distinct sizes of ogbg-code2 and ogbg-ppa, whose histograms are not published.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.interleave import interleave
from bench.paper.heuristics import HEURISTICS, pack_paper
from staticgraph.epochs.batcher import Batcher
from staticgraph.packing import pack_histogram, pack_stream
from staticgraph.packing.fill import THOROUGH
from staticgraph.packing.listing import listings
from staticgraph.plans.choose import plan_buckets
from staticgraph.plans.margin import exact_limits, overflow_rate
from staticgraph.plans.plan import sizes_of
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.text.table import table
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


@pytest.mark.parametrize("name", SETS)
def test_pack_histogram(benchmark, name):
    histogram = load(name)
    pack_histogram(histogram, histogram.maxima, max_graphs=MAX_GRAPHS)
    packing = benchmark(pack_histogram, histogram, histogram.maxima, max_graphs=MAX_GRAPHS)
    benchmark.extra_info.update(packing.to_dict())


@pytest.mark.parametrize("name", ["ogbg-molhiv_train", "ogbg-molpcba_train", "tu_NCI1"])
def test_paper(benchmark, name):
    histogram = load(name)
    packing = benchmark.pedantic(
        pack_paper,
        (histogram, histogram.maxima),
        {"heuristic": "node", "max_graphs": MAX_GRAPHS},
        rounds=3,
    )
    benchmark.extra_info.update(packing.to_dict())


@pytest.mark.parametrize("name", [*GENERATED])
def test_generated(benchmark, name):
    histogram = GENERATED[name]()
    pack_histogram(histogram, histogram.maxima, max_graphs=MAX_GRAPHS)
    packing = benchmark.pedantic(
        pack_histogram,
        (histogram, histogram.maxima),
        {"max_graphs": MAX_GRAPHS},
        rounds=3,
    )
    benchmark.extra_info.update(packing.to_dict())


@pytest.mark.parametrize("batch_size", [32, 128])
def test_exact_epoch(benchmark, batch_size):
    epoch = epochs_of(batch_size, exact=True)
    epoch()
    benchmark(epoch)


@pytest.mark.parametrize("graphs", [32, 128])
def test_stream(benchmark, graphs):
    stream = stream_of_molecules(graphs)
    stream()
    benchmark(stream)


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
    """Measures packs and interleaved seconds per set, of ours and the paper's best heuristic."""
    rows = []
    for name in [*SETS, *GENERATED]:
        histogram = GENERATED[name]() if name in GENERATED else load(name)
        limits = histogram.maxima
        ours = pack_histogram(histogram, limits, max_graphs=MAX_GRAPHS)
        row: dict[str, Any] = {
            "data": name, "graphs": histogram.num_graphs, "sizes": len(histogram.counts),
            "limits": limits.tolist(), "packs": ours.num_packs, "volume_bound": ours.volume_bound,
        }  # fmt: skip

        def run_ours(histogram=histogram, limits=limits):
            return pack_histogram(histogram, limits, max_graphs=MAX_GRAPHS)

        contenders = {"ours": run_ours}
        if name not in GENERATED:  # would take minutes
            packs = {
                h: pack_paper(histogram, limits, heuristic=h, max_graphs=MAX_GRAPHS).num_packs
                for h in HEURISTICS
            }
            best = min(packs, key=lambda h: packs[h])
            row |= {"paper_packs": packs[best], "paper_heuristic": best}

            def run_paper(histogram=histogram, limits=limits, best=best):
                return pack_paper(histogram, limits, heuristic=best, max_graphs=MAX_GRAPHS)

            contenders["paper"] = run_paper
        for contender, timing in interleave(contenders, rounds).items():
            row[f"{contender}_s"] = np.percentile(timing.seconds, [10, 50, 90]).tolist()
        rows.append(row)
    return rows


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
PUBLISHED = Path(__file__).parent / "paper" / "published" / "efficiency.csv"
# The published names whose histogram is available.
PUBLISHED_SETS = {
    "ogbg-molhiv": "ogbg-molhiv_train",
    "ogbg-molpcba": "ogbg-molpcba_train",
    "ogbg-pcqm4mv2": "pcqm4mv2_train_APPROX",
}


def limits_of(name: str, histogram: SizeHistogram) -> list[tuple[list[int], int | None]]:
    """Returns the paper's limits, then limits for ``GRAPHS_A_PACK`` mean graphs per pack.

    Each comes with the maximum number of graphs per pack, or None.
    """
    asked: list[tuple[list[int], int | None]] = []
    with PUBLISHED.open() as lines:
        for row in csv.DictReader(lines):
            if PUBLISHED_SETS.get(row["dataset"]) == name:
                limits = [int(row["max_nodes_per_pack"]), int(row["max_edges_per_pack"])]
                most = row["max_graphs_per_pack"]
                asked.append((limits, None if most == "max" else int(most)))
    mean = histogram.totals / histogram.num_graphs
    for graphs in GRAPHS_A_PACK:
        limits = np.maximum(np.ceil(graphs * mean).astype(np.int64), histogram.maxima)
        asked.append((limits.tolist(), None))
    return [each for k, each in enumerate(asked) if each not in asked[:k]]


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
                    "listing": min(
                        p.num_packs for p in listings(histogram, np.array(limits), most)
                    ),
                    "fast": fast.num_packs, "best": best.num_packs, "proven": best.proven,
                    "fast_over": round(fast.num_packs / best.proven - 1, 5),
                    "best_over": round(best.num_packs / best.proven - 1, 5),
                    "fast_cpu_s": round(middle - begin, 4), "best_s": round(end - clock, 2),
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--overflow", type=int, metavar="EPOCHS")
    parser.add_argument("--efforts", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="with --efforts: these sets")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any]
    if args.efforts:
        found = {"efforts": efforts(args.only)}
        print_efforts(found["efforts"])
    elif args.overflow:
        found = {"epochs": args.overflow, "overflow": overflow(args.overflow)}
        print_overflow(found["overflow"])
    else:
        found = {"packing": quality_and_speed(args.rounds), "streams": streams(5 * args.rounds)}
        print_packing(found["packing"])
        print_streams(found["streams"])
    found |= {
        "command": " ".join(["python -m bench.bench_packing", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} shared CPU cores, load {os.getloadavg()[0]:.0f}",
        "date": time.strftime("%Y-%m-%d"),
        "settings": [effort._asdict() for effort in THOROUGH],
    }
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


def milliseconds(seconds: list[float] | None) -> str:
    if seconds is None:
        return "-"
    low, middle, high = (1000 * s for s in seconds)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def print_packing(rows: list[dict[str, Any]]) -> None:
    print("milliseconds: median (10th to 90th percentile), interleaved")
    print(
        table(
            ["data", "sizes", "packs", "volume", "paper", "ours, ms", "paper, ms"],
            [
                [r["data"], f"{r['sizes']:,}", f"{r['packs']:,}", f"{r['volume_bound']:,}",
                 f"{r.get('paper_packs', '-')} {r.get('paper_heuristic', '')}",
                 milliseconds(r["ours_s"]), milliseconds(r.get("paper_s"))]
                for r in rows
            ],
        )
    )  # fmt: skip


def print_efforts(rows: list[dict[str, Any]]) -> None:
    print(
        table(
            ["data", "graphs", "limits", "fast", "best", "proven", "fast, ms", "best, s"],
            [
                [r["data"], f"{r['graphs_a_pack']:.2f}", " ".join(map(str, r["limits"])),
                 f"{r['fast']:,} {r['fast_over']:+.2%}", f"{r['best']:,} {r['best_over']:+.3%}",
                 f"{r['proven']:,}", f"{1000 * r['fast_cpu_s']:.0f}", f"{r['best_s']:.1f}"]
                for r in rows
            ],
        )
    )  # fmt: skip


def print_streams(rows: list[dict[str, Any]]) -> None:
    for r in rows:
        low, middle, high = (g / 1e6 for g in r["graphs_per_s"])
        print(f"{r['what']:18} {middle:5.1f} million graphs a second ({low:.1f} to {high:.1f})")


def print_overflow(rows: list[dict[str, Any]]) -> None:
    def pair(values: list[float]) -> str:
        return " ".join(f"{v:.2%}" for v in values)

    print(
        table(
            ["data", "batch", "margin", "capacity", "filled", "full batches", "left over", "of"],
            [
                [r["data"], r["batch_size"], f"{r['margin']:.1%}",
                 " ".join(map(str, r["capacity"])), pair(r["filled"]), pair(r["full_batches"]),
                 r["overflowed"], f"{r['batches']:,}"]
                for r in rows
            ],
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
