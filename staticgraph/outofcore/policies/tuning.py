"""Chooses the number of partitions and the buffer size from the sizes of graph and memory.

Priorities in order: everything in memory if it fits; otherwise partitions no smaller than one
efficient disk read; then the largest buffer that leaves room for read-ahead and write-back, with
two logical groups in it (l = 2p/c), as MariusGNN section 5.3 recommends. These are pure functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from staticgraph.text.byte_sizes import parse_bytes
from staticgraph.text.how_many import how_many

# On a server's NVMe disk, random reads of 4 KiB ran 20 times slower than reads of at least 256 KiB.
EFFICIENT_READ_BYTES = 256 * 2**10
# Above this, the p*p cells cost more than finer partitions gain.
MOST_PARTITIONS = 1024


@dataclass(frozen=True, slots=True)
class Tuning:
    """The choice of :func:`tune`.

    Attributes:
        partitions: p.
        buffer: c, physical partitions resident; p if everything fits.
        logical: l, logical partitions; 2p/c, or 1 if everything fits.
        memory_bytes: the memory for buffer, read-ahead, write-back and two states' edges, or for
            everything.
    """

    partitions: int
    buffer: int
    logical: int
    memory_bytes: int

    @property
    def in_memory(self) -> bool:
        """Whether everything fits at once."""
        return self.buffer == self.partitions


def tune(
    num_nodes: int, num_edges: int, node_bytes: int, edge_bytes: int, memory_bytes: int | str
) -> Tuning:
    """Chooses p, c and l.

    Args:
        num_nodes: N.
        num_edges: E.
        node_bytes: bytes of one node on disk (embedding, optimizer state, features).
        edge_bytes: bytes of one edge on disk.
        memory_bytes: the memory to use, as a number or as text such as ``"512 MiB"``.

    Raises:
        ValueError: if even the smallest buffer does not fit; the message says what it needs.
    """
    memory_bytes = parse_bytes(memory_bytes)
    graph_bytes = num_nodes * node_bytes + num_edges * edge_bytes
    if graph_bytes <= memory_bytes:
        return Tuning(1, 1, 1, graph_bytes)
    most = min(MOST_PARTITIONS, num_nodes, max(4, num_nodes * node_bytes // EFFICIENT_READ_BYTES))
    needed = 0
    for logical in range(3, most + 1):
        sizes = range(max(1, most // logical), 0, -1)
        counts = (logical * size for size in sizes)
        partitions = next((p for p in counts if filled_partitions(num_nodes, p) == p), None)
        if partitions is None:
            continue
        size = partitions // logical
        # Two groups resident, one read ahead and one written back; the edges of two states.
        rows = 4 * size * math.ceil(num_nodes / partitions)
        edges = 2 * math.ceil(num_edges * (2 * size / partitions) ** 2)
        needed = rows * node_bytes + edges * edge_bytes
        if needed <= memory_bytes:
            return Tuning(partitions, 2 * size, logical, needed)
    raise ValueError(
        f"{how_many(memory_bytes, 'byte')} of memory hold no buffer for "
        f"{how_many(num_nodes, 'node')} of {node_bytes} bytes and {how_many(num_edges, 'edge')}; "
        f"the smallest takes {needed} bytes: raise the memory, or lower the dimension"
    )


def filled_partitions(num_nodes: int, partitions: int) -> int:
    """Returns how many of these partitions of equal size hold a node."""
    return math.ceil(num_nodes / math.ceil(num_nodes / partitions))
