"""How the attention of a bucket is cut into blocks by the sizes of its graphs: arithmetic alone.

Dense attention over ``[G, M]`` costs ``G * M * M`` entries although one molecule of 222 nodes
stands among a hundred of 25. Order the graphs of a batch by falling size: the ``i``-th of them has
at most ``(N - 1) / i`` nodes, since the ``i`` largest together have no more than ``N - 1``. So the
ranks can be cut into a few blocks, each as wide as the bound at its first rank, and every batch
that fits the bucket fits the blocks: no plan has to promise more than its capacity, and no batch
needs another path. On ogbg-molhiv's bucket of 128 graphs the entries fall to about a quarter.

The layer (:mod:`staticgraph.nn.size_classes`) and the model of memory both ask here.
"""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.sizes import Capacity

PATHS = ("auto", "dense", "classed")
# Entries that one more block must save: it costs half a dozen kernels forward and backward, 2 us
# each where recorded, in which an H200 computes about this many entries of 64 columns.
ENTRIES_A_BLOCK = 20_000
MAX_BLOCKS = 6
# Below this percentage of the dense entries the blocks are chosen.
WORTH_IT = 75


class Block(NamedTuple):
    """Graphs of ranks ``first`` to ``first + graphs - 1``, each with ``width`` places."""

    first: int
    graphs: int
    width: int

    @property
    def places(self) -> int:
        """Rows of the block."""
        return self.graphs * self.width


class AttentionPath(NamedTuple):
    """How a bucket's attention is laid out.

    Attributes:
        name: ``dense`` (one block) or ``size-classed dense``.
        blocks: by rising rank.
        reason: why, in words, for reports.
    """

    name: str
    blocks: tuple[Block, ...]
    reason: str

    @property
    def entries(self) -> int:
        """Pairs of places that attention looks at."""
        return sum(block.places * block.width for block in self.blocks)


def attention_path(capacity: Capacity, asked: str = "auto") -> AttentionPath:
    """The blocks of a bucket.

    Args:
        capacity: the bucket.
        asked: ``dense``, ``classed``, or ``auto``: whichever has fewer entries by a margin.

    Raises:
        ValueError: another name.
    """
    if asked not in PATHS:
        raise ValueError(f"attention={asked!r}; choose of {', '.join(PATHS)}")
    whole = (Block(0, capacity.graphs, capacity.max_graph_nodes),)
    dense = AttentionPath("dense", whole, "as asked")
    if asked == "dense":
        return dense
    blocks = _cut(capacity.node_limit, capacity.graphs, capacity.max_graph_nodes)
    classed = AttentionPath("size-classed dense", blocks, "as asked")
    if asked == "classed":
        return classed
    share = 100 * classed.entries // dense.entries
    reason = f"auto: {len(blocks)} blocks have {share}% of the entries of one"
    chosen = classed if share < WORTH_IT else dense
    return AttentionPath(chosen.name, chosen.blocks, reason)


def _cut(nodes: int, graphs: int, widest: int) -> tuple[Block, ...]:
    """The ranks ``0 .. graphs - 1`` in blocks that begin in geometric progression.

    Up to rank ``nodes / widest`` every graph can be the widest. From there on the bound falls as
    one over the rank, and of all cuts into ``k`` blocks one with equal ratios has the fewest
    entries; ``k`` is where another block no longer saves what it costs. Plain arithmetic, since it
    is traced with the step.
    """
    first = max(1, nodes // widest)
    if first >= graphs:
        return (Block(0, graphs, widest),)
    best, least = (Block(0, graphs, widest),), graphs * widest * widest + ENTRIES_A_BLOCK
    for count in range(1, MAX_BLOCKS):
        ratio = (graphs / first) ** (1 / count)
        starts, at = [0], float(first)
        for _ in range(count):
            if starts[-1] < int(at) < graphs:
                starts.append(int(at))
            at *= ratio
        ends = [*starts[1:], graphs]
        blocks, cost = [], 0
        for begin, end in zip(starts, ends, strict=True):
            width = max(1, min(widest, nodes // (begin + 1)))
            blocks.append(Block(begin, end - begin, width))
            cost += (end - begin) * width * width + ENTRIES_A_BLOCK
        if cost < least:
            best, least = tuple(blocks), cost
    return best
