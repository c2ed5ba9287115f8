"""Helpers for a measurement in a separate process: generated edges, a memory limit, usage."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np

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
