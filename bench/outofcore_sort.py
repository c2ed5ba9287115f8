"""Partitioning generated edges within a memory limit."""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.outofcore_process import generated, limit, status
from staticgraph.outofcore import partition


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
