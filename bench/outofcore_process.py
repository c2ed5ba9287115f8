"""A process of its own for a measurement: generated edges, a limit of memory, what it used."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MIB = 2**20


def generated(num_nodes: int, num_edges: int, piece: int = 1 << 20) -> Iterator[np.ndarray]:
    """Edges whose ends are skewed: the square of a uniform number favours low node numbers."""
    for number, low in enumerate(range(0, num_edges, piece)):
        rng = np.random.default_rng(number)
        ends = rng.random((2, min(piece, num_edges - low)))
        yield np.minimum((ends**2 * num_nodes).astype(np.int64), num_nodes - 1)


def limit(mib: int | None) -> None:
    """``ulimit -v`` for this process."""
    if mib:
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))


def status(name: str) -> int:
    """A line of /proc/self/status in MiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1]) // 1024


def device_bytes(way: str = "read") -> int:
    """Bytes that this process made the block device read or write so far, not the page cache."""
    text = Path("/proc/self/io").read_text()
    return int(
        next(line for line in text.splitlines() if line.startswith(f"{way}_bytes")).split()[1]
    )
