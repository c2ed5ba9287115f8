"""One graph larger than memory: sorting, sampling, static hops, training from disk, accuracy.

    export OMP_NUM_THREADS=1
    python bench/bench_outofcore.py sort --edges 100000000 --nodes 10000000 --limit-mib 2048
    python bench/bench_outofcore.py sample
    python bench/bench_outofcore.py hops
    python bench/bench_outofcore.py disk --limit-mib 1600
    python bench/bench_outofcore.py nodes

``sort`` and ``disk`` run in a child whose address space is limited (``ulimit -v``), after the
libraries are loaded; ``disk`` also shows that training in memory does not fit the same limit.
``sample`` compares with PyG's NeighborLoader where pyg-lib or torch-sparse is installed, otherwise
with the plain twin in Python, and says which. Sampled numbers are compared before they are timed.
Every result goes to stdout as JSON, and with ``--save`` to ``bench/results``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from staticgraph.outofcore import (
    Comet,
    Dispersed,
    InMemory,
    LinkConfig,
    LinkTrainer,
    NodeCache,
    NodeTrainer,
    SampledGNN,
    SampledLoader,
    data,
    dense_oracle,
    partition,
)
from staticgraph.outofcore.dense import DenseSampler
from staticgraph.outofcore.hops import profile
from staticgraph.outofcore.neighbours import Neighbours
from staticgraph.report import versions

RESULTS = Path(__file__).parent / "results"
MIB = 2**20


def generated(num_nodes: int, num_edges: int, piece: int = 1 << 20) -> Iterator[np.ndarray]:
    """Edges whose ends are skewed: the square of a uniform number favours low node numbers."""
    for number, low in enumerate(range(0, num_edges, piece)):
        rng = np.random.default_rng(number)
        ends = rng.random((2, min(piece, num_edges - low)))
        yield np.minimum((ends**2 * num_nodes).astype(np.int64), num_nodes - 1)


# ---------------------------------------------------------------------- sort


def sort(args: argparse.Namespace) -> dict[str, Any]:
    """Partitions generated edges; the peak is of the whole process."""
    folder = Path(tempfile.mkdtemp(dir=args.scratch))
    loaded = status("VmSize")
    # The kernels compile before the limit: a compiler is not what is measured.
    partition(lambda: generated(100, 100), 100, 4, folder / "warm", features=None)
    limit(args.limit_mib)
    started = time.perf_counter()
    nodes = args.nodes
    graph = partition(
        lambda: generated(nodes, args.edges), nodes, args.partitions, folder / "g", chunk=args.chunk
    )
    seconds = time.perf_counter() - started
    result = {
        "edges": graph.num_edges,
        "nodes": graph.num_nodes,
        "partitions": graph.num_partitions,
        "seconds": round(seconds, 1),
        "edges_per_s": round(graph.num_edges / seconds),
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_address_space_mib": status("VmPeak"),
        "address_space_of_libraries_mib": loaded,
        "limit_mib": args.limit_mib,
    }
    shutil.rmtree(folder)
    return result


def limit(mib: int | None) -> None:
    """``ulimit -v`` for this process."""
    if mib:
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))


def status(name: str) -> int:
    """A line of /proc/self/status in MiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1]) // 1024


# ---------------------------------------------------------------------- sample, hops


def sample(args: argparse.Namespace) -> dict[str, Any]:
    """Sampling 1 to 4 layers on Cornell5 (both directions of each friendship)."""
    graph = data.open_nodes("cornell5")
    n = len(graph.labels)
    neighbours = Neighbours.of(*graph.edges, n)
    peer = pyg_sampler(graph) if has_wheels() else None
    rows = []
    for layers in range(1, 5):
        fanouts = [10] * layers
        sampler = DenseSampler(neighbours, fanouts)
        rng = np.random.default_rng(0)
        batches = [rng.choice(n, args.batch_size, replace=False) for _ in range(args.batches)]
        found = [sampler.sample(seeds, k) for k, seeds in enumerate(batches)]
        twin = dense_oracle.sample(neighbours, fanouts, batches[0], 0)
        assert np.array_equal(twin.nodes, found[0].nodes)
        dense_s = [timed(sampler.sample, seeds, k) for k, seeds in enumerate(batches)]
        few = batches[: 3 if layers < 3 else 1]
        slow = peer or (lambda f, seeds, k: dense_oracle.sample(neighbours, f, seeds, k))
        slow_s = [timed(slow, fanouts, seeds, k) for k, seeds in enumerate(few)]
        edges = np.mean([s.num_edges for s in found])
        again = np.mean(
            [sum((layers - h) * (t >= 0).sum() for h, t in enumerate(s.tables)) for s in found]
        )
        rows.append(
            {
                "layers": layers,
                "ms": round(1e3 * float(np.median(dense_s)), 2),
                "ms_p90": round(1e3 * float(np.quantile(dense_s, 0.9)), 2),
                "other_ms": round(1e3 * float(np.median(slow_s)), 1),
                "nodes": round(float(np.mean([len(s.nodes) for s in found]))),
                "edges": round(float(edges)),
                "edges_without_reuse": round(float(again)),
                "reuse": round(float(again / edges), 2),
            }
        )
    return {
        "graph": "cornell5", "fanout": 10, "batch_size": args.batch_size,
        "other": "PyG NeighborLoader" if peer else "plain Python twin (no pyg-lib or torch-sparse)",
        "layers": rows,
    }  # fmt: skip


def has_wheels() -> bool:
    from torch_geometric import typing

    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE)


def pyg_sampler(graph: data.NodeData) -> Any:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    whole = Data(edge_index=torch.from_numpy(graph.edges), num_nodes=len(graph.labels))

    def run(fanouts: list[int], seeds: np.ndarray, seed: int) -> Any:
        loader = NeighborLoader(
            whole, fanouts, input_nodes=torch.from_numpy(seeds), batch_size=len(seeds)
        )
        return next(iter(loader))

    return run


def timed(function: Any, *arguments: Any) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def hops(args: argparse.Namespace) -> dict[str, Any]:
    """How well two rungs hold 400 batches, beside the bound that always holds."""
    rows = []
    for name, fanouts in (("cornell5", [15, 10]), ("cornell5", [10, 10, 10]), ("cora", [15, 10])):
        graph = data.open_nodes(name)
        n = len(graph.labels)
        sampler = DenseSampler(Neighbours.of(*graph.edges, n), fanouts)
        for batch_size in (64, 256, 1024):
            ladder = profile(sampler, np.arange(n), batch_size)
            rng = np.random.default_rng(1)
            counts = []
            for number in range(400):
                (part, *_) = ladder.fit(sampler, rng.choice(n, batch_size, replace=False), number)
                counts.append(sum(part[1].counts))
            bound = sum(
                min(n, batch_size * int(np.prod(fanouts[:h]))) for h in range(len(fanouts) + 1)
            )
            statistics = ladder.statistics
            rows.append(
                {
                    "graph": name, "fanouts": fanouts, "batch_size": batch_size,
                    "deviation_of_rows": round(float(np.std(counts) / np.mean(counts)), 4),
                    "batches_a_rung": statistics.batches, "splits": statistics.splits,
                    "efficiency": round(statistics.efficiency, 3),
                    "bound_over_mean": round(bound / float(np.mean(counts)), 2),
                }
            )  # fmt: skip
    return {"batches": 400, "hops": rows}


# ---------------------------------------------------------------------- disk


def disk(args: argparse.Namespace) -> dict[str, Any]:
    """Epochs in memory without a limit, then from disk within one, where memory would not do.

    Both take turns, a process each time, since the machine is shared; ratios are of neighbours.
    """
    scratch = Path(tempfile.mkdtemp(dir=args.scratch))
    found: dict[str, list[dict[str, Any]]] = {"memory": [], "disk": []}
    for _ in range(args.rounds):
        for kind, mib in (("memory", None), ("disk", args.limit_mib)):
            found[kind].append(in_child(args, kind, mib, scratch))
    ratios = {
        name: [
            round(d[name] / m[name], 3) for d, m in zip(found["disk"], found["memory"], strict=True)
        ]
        for name in ("epoch_s", "training_cpu_s", "process_cpu_s")
    }
    result = {
        "data_mib": args.nodes * args.dimension * 8 // MIB,
        "limit_mib": args.limit_mib,
        **found,
        "memory_within_the_limit": in_child(args, "memory", args.limit_mib, scratch),
        "disk_over_memory": ratios,
    }
    shutil.rmtree(scratch)
    return result


def in_child(args: argparse.Namespace, kind: str, mib: int | None, scratch: Path) -> dict[str, Any]:
    command = [
        sys.executable, __file__, "disk-child", "--kind", kind, "--scratch", str(scratch),
        "--nodes", str(args.nodes), "--edges", str(args.edges),
        "--dimension", str(args.dimension), "--epochs", str(args.epochs),
    ]  # fmt: skip
    if mib is not None:
        command += ["--limit-mib", str(mib)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1:] or [""]
    result = json.loads(done.stdout) if done.returncode == 0 else {"failed": last[0]}
    print(kind, mib, result, file=sys.stderr)
    shutil.rmtree(scratch / kind, ignore_errors=True)
    return result


def disk_child(args: argparse.Namespace) -> dict[str, Any]:
    folder = Path(args.scratch) / args.kind
    p, policy = 32, Comet(8, 8) if args.kind == "disk" else InMemory()
    graph = partition(
        lambda: generated(args.nodes, args.edges), args.nodes, p, folder / "g", chunk=1 << 18
    )
    config = LinkConfig(dimension=args.dimension)
    # Compiles and loads everything on a small graph before the limit.
    tiny = partition(lambda: generated(2000, 4000), 2000, 4, folder / "tiny")
    LinkTrainer(tiny, Comet(2), LinkConfig(dimension=8), folder / "tiny-e").train_epoch()
    before = status("VmSize")
    limit(args.limit_mib)
    trainer = LinkTrainer(graph, policy, config, folder / "e")
    training_cpu, process_cpu = time.thread_time(), time.process_time()
    epochs = [trainer.train_epoch() for _ in range(args.epochs)]
    training_cpu = (time.thread_time() - training_cpu) / args.epochs
    process_cpu = (time.process_time() - process_cpu) / args.epochs
    best = min(epochs, key=lambda epoch: epoch.seconds)
    return {
        "partitions": p,
        "epoch_s": round(best.seconds, 2),
        "training_cpu_s": round(training_cpu, 2),
        "process_cpu_s": round(process_cpu, 2),
        "waited_share": round(best.waited_s / best.seconds, 4),
        "partitions_read": best.partitions_read,
        "read_mib": best.bytes_read // MIB,
        "loss": round(best.loss, 4),
        "buffer_mib": trainer.buffer.nbytes // MIB,
        "address_space_before_mib": before,
        "peak_address_space_mib": status("VmPeak"),
    }


# ---------------------------------------------------------------------- nodes


class Case(NamedTuple):
    """What is trained on a graph; an epoch in memory is one step on all training nodes."""

    model: str
    fanouts: list[int]
    hidden: int
    epochs: int


CASES = {
    "cora": Case("gcn", [200, 200], 64, 60),
    "citeseer": Case("gcn", [200, 200], 64, 60),
    "cornell5": Case("sage", [10, 10], 32, 48),
}
EVALUATIONS = 12


def nodes(args: argparse.Namespace) -> dict[str, Any]:
    """Test accuracy at the best validation: PyG in memory, ours in memory, ours from disk."""
    rows = []
    for name in args.graph or CASES:
        graph, case = data.open_nodes(name), CASES[name]
        for way in ("pyg", "memory", "node-cache", "dispersed"):
            found = []
            for seed in range(3):
                torch.manual_seed(seed)
                if way == "pyg":
                    found.append(pyg_accuracy(graph, case))
                else:
                    found.append(our_accuracy(graph, case, way, seed))
            rows.append(
                {"graph": name, "model": case.model, "way": way,
                 "accuracy": [round(a, 4) for a in found], "mean": round(float(np.mean(found)), 4)}
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows}


def made(graph: data.NodeData, case: Case) -> SampledGNN:
    classes = int(graph.labels.max()) + 1
    return SampledGNN(case.model, graph.features.shape[1], case.hidden, classes, 2, 0.5)


def pyg_accuracy(graph: data.NodeData, case: Case) -> float:
    """The same layers, PyG's, in full batch."""
    model = made(graph, case)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    x, y = torch.from_numpy(graph.features), torch.from_numpy(graph.labels)
    edges = torch.from_numpy(graph.edges)
    best = (-1.0, 0.0)
    for step in range(1, case.epochs + 1):
        model.train()
        loss = nn.functional.cross_entropy(model.whole(x, edges)[graph.train], y[graph.train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, case.epochs // EVALUATIONS):
            continue
        model.eval()
        with torch.no_grad():
            right = (model.whole(x, edges).argmax(1) == y).numpy()
        best = max(best, (right[graph.valid].mean(), right[graph.test].mean()))
    return float(best[1])


def our_accuracy(graph: data.NodeData, case: Case, way: str, seed: int) -> float:
    best = (-1.0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        p, policy = {
            "memory": (1, InMemory()), "node-cache": (16, NodeCache(8)),
            "dispersed": (16, Dispersed(8)),
        }[way]  # fmt: skip
        parts = partition(
            graph.edges, len(graph.labels), p, Path(folder) / "g", features=graph.features,
            seed=seed, training_nodes=graph.train if way == "node-cache" else None,
        )  # fmt: skip
        loader = SampledLoader(
            parts,
            policy,
            case.fanouts,
            len(graph.train),
            seeds=graph.train,
            labels=graph.labels,
            seed=seed,
        )
        trainer = NodeTrainer(made(graph, case), loader)
        for epoch in range(1, case.epochs + 1):
            trainer.train_epoch()
            if epoch % max(1, case.epochs // EVALUATIONS):
                continue
            valid = trainer.evaluate_whole(graph.valid, graph.labels)
            if valid >= best[0]:
                best = (valid, trainer.evaluate_whole(graph.test, graph.labels))
        loader.close()
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sort", "sample", "hops", "disk", "disk-child", "nodes"))
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=1 << 22)
    parser.add_argument("--limit-mib", type=int)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--kind", choices=("memory", "disk"))
    parser.add_argument("--graph", nargs="*", choices=tuple(CASES), help="nodes: only these")
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    parser.add_argument("--save", action="store_true", help="also write to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = {"sort": sort, "sample": sample, "hops": hops, "disk": disk, "disk-child": disk_child,
           "nodes": nodes}[args.what]  # fmt: skip
    result = run(args)
    if args.what != "disk-child":
        result |= {
            "command": " ".join(["bench_outofcore.py", *sys.argv[1:]]),
            "machine": f"{os.cpu_count()} shared CPU cores",
            "date": time.strftime("%Y-%m-%d"),
            "versions": versions(),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"outofcore_{args.what}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
