"""Epochs from disk within a memory limit, compared with epochs in memory without a limit.

Each runs in a separate process, in turns, since the machine is shared; ratios are of neighbouring
turns. The limit is ``ulimit -v``, set after the libraries are loaded. The graph is opened with
``cached=False``, so that every block leaves the page cache as soon as it is in its array or on the
disk, and all reads come from the device. ``/proc/self/io`` has the number of bytes read from the
device; the result also has the number that the store requested, and the difference was served by a
cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.outofcore import (
    Comet,
    InMemory,
    LinkConfig,
    LinkTrainer,
    PartitionedGraph,
    partition,
)

PARTITIONS, BUFFER, LOGICAL = 32, 8, 8
TIMES = ("epoch_s", "without_ends_s", "training_cpu_s", "process_cpu_s")


def disk(args: argparse.Namespace) -> dict[str, Any]:
    """Runs both in turns, then in memory within the limit, which must fail."""
    scratch = Path(tempfile.mkdtemp(dir=args.scratch))
    found: dict[str, list[dict[str, Any]]] = {"memory": [], "disk": []}
    for _ in range(args.rounds):
        for kind, mib in (("memory", None), ("disk", args.limit_mib)):
            found[kind].append(in_child(args, kind, mib, scratch))
    pairs = list(zip(found["disk"], found["memory"], strict=True))
    result = {
        "data_mib": args.nodes * args.dimension * 8 // MIB,
        "limit_mib": args.limit_mib,
        "page_cache": "in use" if args.cached else "given back after every block",
        **found,
        "memory_within_the_limit": in_child(args, "memory", args.limit_mib, scratch),
        "disk_over_memory": {
            name: [round(d[name] / m[name], 3) for d, m in pairs] for name in TIMES
        },
    }
    shutil.rmtree(scratch)
    return result


def in_child(args: argparse.Namespace, kind: str, mib: int | None, scratch: Path) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "bench.bench_outofcore", "disk-child", "--kind", kind,
        "--scratch", str(scratch), "--nodes", str(args.nodes), "--edges", str(args.edges),
        "--dimension", str(args.dimension), "--epochs", str(args.epochs),
    ]  # fmt: skip
    command += ["--limit-mib", str(mib)] if mib is not None else []
    command += ["--cached"] if args.cached else []
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    last = done.stderr.strip().splitlines()[-1:] or [""]
    result = json.loads(done.stdout) if done.returncode == 0 else {"failed": last[0]}
    print(kind, mib, result, file=sys.stderr)
    shutil.rmtree(scratch / kind, ignore_errors=True)
    return result


def disk_child(args: argparse.Namespace) -> dict[str, Any]:
    """Partitions, then trains.

    Wall-clock times are of the fastest epoch, processor times are means, and bytes are totals.
    """
    folder = Path(args.scratch) / args.kind
    policy = Comet(BUFFER, LOGICAL) if args.kind == "disk" else InMemory()
    partition(
        lambda: generated(args.nodes, args.edges), args.nodes, PARTITIONS, folder / "g",
        chunk=1 << 18,
    )  # fmt: skip
    graph = PartitionedGraph(folder / "g", cached=args.cached)
    # Compiles and loads everything on a small graph before the limit.
    tiny = partition(lambda: generated(2000, 4000), 2000, 4, folder / "tiny")
    LinkTrainer(tiny, Comet(2), LinkConfig(dimension=8), folder / "tiny-e").train_epoch()
    before = status("VmSize")
    limit(args.limit_mib)
    trainer = LinkTrainer(graph, policy, LinkConfig(dimension=args.dimension), folder / "e")
    if not args.cached:
        # The pages left by writing the first values.
        drop(folder / "e" / "embeddings.bin", folder / "g" / "edges.bin")
    asked = trainer.file.bytes_read + graph.edge_file.bytes_read
    device = device_bytes("read"), device_bytes("write")
    training_cpu, process_cpu = time.thread_time(), time.process_time()
    epochs, ends = [], []
    for _ in range(args.epochs):
        epochs.append(trainer.train_epoch())
        times = trainer.buffer.times
        # From the beginning of the first state to the end of the last: without the first fill and
        # the commit, which neither way can hide.
        ends.append(times[-1].ended_s - times[0].began_s)
    training_cpu = (time.thread_time() - training_cpu) / args.epochs
    process_cpu = (time.process_time() - process_cpu) / args.epochs
    asked = trainer.file.bytes_read + graph.edge_file.bytes_read - asked
    read, written = device_bytes("read") - device[0], device_bytes("write") - device[1]
    best = min(range(args.epochs), key=lambda k: epochs[k].seconds)
    epoch = epochs[best]
    return {
        "partitions": PARTITIONS,
        "epoch_s": round(epoch.seconds, 2),
        "without_ends_s": round(ends[best], 2),
        "training_cpu_s": round(training_cpu, 2),
        "process_cpu_s": round(process_cpu, 2),
        "waited_share": round(epoch.waited_s / epoch.seconds, 4),
        "partitions_read": epoch.partitions_read,
        "read_mib": epoch.bytes_read // MIB,
        "asked_of_the_files_mib": asked // MIB,
        "read_from_the_device_mib": read // MIB,
        "written_to_the_device_mib": written // MIB,
        "served_by_a_cache": round(max(0.0, 1 - read / asked), 4),
        "loss": round(epoch.loss, 4),
        "buffer_mib": (trainer.buffer.values.nbytes + trainer.buffer.sums.nbytes) // MIB,
        "address_space_before_mib": before,
        "peak_address_space_mib": status("VmPeak"),
    }


def drop(*paths: Path) -> None:
    """Drops the pages of files from the page cache."""
    import os

    for path in paths:
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def sort(args: argparse.Namespace) -> dict[str, Any]:
    """Partitions generated edges; the peak is of the whole process."""
    folder = Path(tempfile.mkdtemp(dir=args.scratch))
    loaded = status("VmSize")
    # The kernels compile before the limit is set: the compiler is not part of the measurement.
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


MIB = 2**20


def generated(num_nodes: int, num_edges: int, piece: int = 1 << 20) -> Iterator[np.ndarray]:
    """Yields edges with skewed ends: the square of a uniform number favours low node numbers."""
    for number, low in enumerate(range(0, num_edges, piece)):
        rng = np.random.default_rng(number)
        ends = rng.random((2, min(piece, num_edges - low)))
        yield np.minimum((ends**2 * num_nodes).astype(np.int64), num_nodes - 1)


def limit(mib: int | None) -> None:
    """Sets ``ulimit -v`` for this process; None sets no limit."""
    if mib:
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))


def status(name: str) -> int:
    """Returns a line of /proc/self/status in MiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1]) // 1024


def device_bytes(way: str = "read") -> int:
    """Returns the bytes this process has read from or written to the block device so far."""
    text = Path("/proc/self/io").read_text()
    return int(
        next(line for line in text.splitlines() if line.startswith(f"{way}_bytes")).split()[1]
    )
