"""Choosing the path of a bucket's attention and cutting it into blocks: arithmetic only.

Dense attention over ``[G, M]`` costs ``G * M * M`` entries even if a single molecule of 222 nodes
is among a hundred of 25. Sort the graphs of a batch by descending size: the ``i``-th graph has at
most ``(N - 1) / i`` nodes, since the ``i`` largest together have no more than ``N - 1``. So they
can be cut into a few blocks, each as wide as the bound of its first graph, and every batch that
fits the bucket fits the blocks. A capacity that promises more of the data's order statistics
(:attr:`Capacity.order_statistics`) has narrower blocks, and the batcher keeps the promise.

Two more paths have no blocks: ``varlen`` (one sequence per graph) and ``kernel`` (this library's
own, tiles of each graph). The cost of each is counted the same way, as the entries that its tiles
cover in the costliest batch of the bucket, and the launches of each block are charged as the
entries computed in that time, so that a choice is a comparison of numbers and comes with a reason.
Where the kernel can run it replaces the dense paths, since it does their arithmetic in one launch
each for forward and backward. The counts are arithmetic; no path but the first was timed on a GPU
for them.

Both the layers (:mod:`staticgraph.nn.attention.paths`) and the memory model use this module. It
uses plain numbers, since :func:`attention_path` is traced with the step.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from staticgraph.errors import NotStatic
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many

PATHS = ("auto", "dense", "size-classed", "varlen", "kernel")
# Entries that a block must save: it costs half a dozen kernels forward and backward, 2 us each
# where recorded, in which an H200 computes about this many entries of 64 columns.
ENTRIES_A_BLOCK = 20_000
MAX_BLOCKS = 6
# A path replaces a simpler one if its entries are below this percentage of the simpler path's.
WORTH_IT = 75
# Rows and columns of the tiles that flash attention's kernels work on, for heads of up to 128.
VARLEN_TILE = (128, 64)
# Rows and columns of a tile of this library's kernel: a molecule is one tile or a few; sixteen is
# the minimum of the matrix unit. Wide heads leave registers for no more.
KERNEL_TILE, KERNEL_LEAST_TILE = 32, 16
KERNEL_WIDE_HEAD = 64
# The most columns of a head that the kernel keeps in registers together with its sums.
KERNEL_MOST_HEAD = 128
# Bytes that a row of one head must be a multiple of, for the kernels' vector loads.
HEAD_ALIGNMENT_BYTES = 16
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
# The most columns of a head in flash attention.
VARLEN_MOST_HEAD = 256


class AttentionBlock(NamedTuple):
    """``graphs`` graphs by descending size, starting at ``first``, each with ``width`` places."""

    first: int
    graphs: int
    width: int

    @property
    def places(self) -> int:
        """The rows of the block."""
        return self.graphs * self.width


class AttentionSetting(NamedTuple):
    """Where attention runs and with which options, as far as that rules out a path.

    Attributes:
        device: ``cuda`` or ``cpu``.
        dtype: of queries, keys and values, such as ``float32``.
        head: columns of one head; 0 where unknown.
        dropout: of the attention weights, 0 outside training.
        extra_keys: what gives each graph keys that are not nodes, in words; or empty.
        kernels: whether the model was converted with this library's kernels.
        training: whether in training mode, which is timed separately from evaluation.
    """

    device: str = "cpu"
    dtype: str = "float32"
    head: int = 0
    dropout: float = 0.0
    extra_keys: str = ""
    kernels: bool = False
    training: bool = False

    def forbids(self, path: str) -> str:
        """Why a path is impossible here, in words; empty where it is possible."""
        if path in ("dense", "size-classed", "auto"):
            return ""
        if self.dropout and path != "kernel":
            return f"it has no dropout, and this layer drops {self.dropout:g} of the weights"
        if self.extra_keys:
            return f"{self.extra_keys}, which belong to no node"
        if self.dropout >= 1:
            return "it drops some of the weights, and this layer all of them"
        if self.device != "cuda":
            return ""
        size = DTYPE_BYTES.get(self.dtype)
        if size is None:
            return f"no CUDA kernel for {self.dtype}"
        if path == "varlen" and self.head * size % HEAD_ALIGNMENT_BYTES:
            columns = HEAD_ALIGNMENT_BYTES // size
            return (
                f"heads of {how_many(self.head, 'column')}, no multiple of {columns} for "
                f"{self.dtype}"
            )
        if path == "varlen" and self.head > VARLEN_MOST_HEAD:
            return f"heads of {how_many(self.head, 'column')}, more than {VARLEN_MOST_HEAD}"
        if path == "kernel" and self.head > KERNEL_MOST_HEAD:
            return f"heads of {how_many(self.head, 'column')}, more than {KERNEL_MOST_HEAD}"
        return ""

    def discourages(self, path: str) -> str:
        """Why ``auto`` leaves ``varlen`` or ``kernel``, where it is possible, to explicit requests;
        empty where it does not."""
        if self.device != "cuda":
            return "on a CPU it is a loop over graphs"
        if path == "kernel" and not self.kernels:
            return "the model was converted without kernels=True"
        return ""


class AttentionPath(NamedTuple):
    """How a bucket's attention is laid out, and what the alternatives would have cost.

    Attributes:
        name: one of :data:`PATHS` except ``auto``.
        requested: the path that the user chose.
        blocks: of the two dense paths, by descending size; empty for the others.
        costs: the most entries of each path.
        pairs: the most pairs of nodes that attend to each other, in the costliest batch.
        ruled_out: path and reason for each path that was not compared.
        by_time: whether ``auto`` took it because of timings on the device, whatever its count.
    """

    name: str
    requested: str
    blocks: tuple[AttentionBlock, ...]
    costs: tuple[tuple[str, int], ...]
    pairs: int
    ruled_out: tuple[tuple[str, str], ...] = ()
    by_time: bool = False

    @property
    def entries(self) -> int:
        """The most entries of the chosen path."""
        return dict(self.costs)[self.name]

    @property
    def reason(self) -> str:
        """The choice in words, with the numbers that led to it."""
        costs = dict(self.costs)
        out = dict(self.ruled_out)
        shown = [
            f"{name} {cost:,}"
            + ("" if name == "dense" else f" ({100 * cost // max(1, costs['dense'])}%)")
            + (f" ruled out: {out[name]}" if name in out else "")
            for name, cost in self.costs
        ]
        how = "auto, by time" if self.by_time else "auto"
        how = "as asked" if self.requested == self.name else how
        blocks = f", {how_many(len(self.blocks), 'block')}" if self.name == "size-classed" else ""
        return f"{how}{blocks}; entries at most: {'; '.join(shown)}; pairs of nodes {self.pairs:,}"


def attention_path(
    capacity: Capacity,
    requested: str = "auto",
    setting: AttentionSetting | None = None,
    timed: str = "",
) -> AttentionPath:
    """Chooses the path of a bucket's attention.

    Args:
        capacity: the bucket.
        requested: a path, or ``auto`` for the path with the fewest entries, if it beats a simpler
            path by a margin.
        setting: where it runs; None compares only the two dense paths.
        timed: the path that was fastest on the device, which ``auto`` takes where it is possible;
            empty where none was timed.

    Raises:
        NotStatic: the requested path is impossible there.
        ValueError: an unknown name.
    """
    check_path(requested)
    whole = (AttentionBlock(0, capacity.graphs, capacity.max_graph_nodes),)
    blocks = blocks_of(capacity)
    costliest = _costliest(capacity, blocks)
    pairs = sum(graphs * width * width for graphs, width in costliest)
    tile = kernel_tile(capacity.max_graph_nodes, setting.head if setting else 0)
    costs = (
        ("dense", _entries(whole)),
        ("size-classed", _entries(blocks)),
        ("varlen", _tile_entries(capacity, costliest, VARLEN_TILE)),
        ("kernel", _tile_entries(capacity, costliest, (tile, tile))),
    )
    ruled_out = []
    for path in ("varlen", "kernel"):
        reason = "not asked for"
        if setting is not None:
            reason = setting.forbids(path)
            if requested == path and reason:
                raise NotStatic(
                    f"attention={requested!r} is impossible here: {reason}. Choose 'auto', 'dense' "
                    "or 'size-classed'"
                )
            reason = reason or setting.discourages(path)
        if reason and requested != path:
            ruled_out.append((path, reason))
    name = requested
    by_time = bool(requested == "auto" and timed and setting and not setting.forbids(timed))
    if by_time:
        name = timed
        ruled_out = [(path, why) for path, why in ruled_out if path != timed]
    elif requested == "auto":
        name = _least(costs, len(blocks), [path for path, _ in ruled_out])
        if name == "kernel":
            ruled_out[:0] = [
                (path, "the kernel does the same") for path in ("dense", "size-classed")
            ]
    chosen = {"dense": whole, "size-classed": blocks}.get(name, ())
    return AttentionPath(name, requested, chosen, costs, pairs, tuple(ruled_out), by_time)


SEEDS = AttentionSetting(extra_keys="it pools by seed vectors")


def pooling_path(capacity: Capacity, requested: str) -> AttentionPath:
    """Returns the dense path of layers that pool by seed vectors in a bucket."""
    return attention_path(capacity, "auto" if SEEDS.forbids(requested) else requested, SEEDS)


def check_path(path: str) -> None:
    """Checks the name of an attention path.

    Raises:
        ValueError: unknown path.
    """
    if path not in PATHS:
        raise ValueError(f"attention={path!r}; choose one of {', '.join(PATHS)}")


class AttentionChoice:
    """The attention path of one model: the one requested, the fastest measured, or the cheapest.

    Attributes:
        requested: a path for all buckets, or ``auto``.
        timed: the path that was fastest on the device
            (:mod:`staticgraph.runner.attention_trial`), by :func:`timing_key`.
    """

    __slots__ = ("requested", "timed")

    def __init__(self) -> None:
        self.requested: str = "auto"
        self.timed: dict[Hashable, str] = {}

    def path_in(self, capacity: Capacity, setting: AttentionSetting) -> AttentionPath:
        """Returns the path of attention in a bucket, for a layer in this setting.

        Raises:
            NotStatic: the requested path is impossible there.
        """
        timed = self.timed.get(timing_key(capacity, setting.training), "")
        return attention_path(capacity, self.requested, setting, timed)


def timing_key(capacity: Capacity, training: bool) -> Hashable:
    """What a timing of attention is valid for: the numbers of a bucket, and the mode."""
    numbers = capacity.nodes, capacity.graphs, capacity.max_graph_nodes
    return (*numbers, capacity.order_statistics, training)


def rivals(capacity: Capacity, setting: AttentionSetting) -> tuple[str, ...]:
    """The paths that only timing can decide between, simplest first.

    They are the best path by count without ``varlen``, and ``varlen``, whose kernels come from
    another library. Only one path is returned where there is no choice.

    Args:
        capacity: the bucket.
        setting: where it runs.
    """
    found = attention_path(capacity, "auto", setting)
    ruled_out = [path for path, _ in found.ruled_out]
    if "varlen" in ruled_out:
        return (found.name,)
    return _least(found.costs, len(blocks_of(capacity)), [*ruled_out, "varlen"]), "varlen"


def kernel_tile(longest: int, head: int) -> int:
    """Rows of a tile of this library's kernel, for the longest graph and the columns of a head."""
    small = longest <= KERNEL_LEAST_TILE or head > KERNEL_WIDE_HEAD
    return KERNEL_LEAST_TILE if small else KERNEL_TILE


def charged(entries: int, blocks: int) -> int:
    """Entries of blocks plus the cost of launching the blocks, in entries."""
    return entries + blocks * ENTRIES_A_BLOCK


def _least(costs: tuple[tuple[str, int], ...], blocks: int, ruled_out: list[str]) -> str:
    """Starts from the kernel where it is possible, else from one dense block; every other path must
    cost less than the best so far by the margin, launches included. Every path except the blocks by
    size is charged as one block."""
    whole = {path: charged(cost, blocks if path == "size-classed" else 1) for path, cost in costs}
    name, others = "kernel", ["varlen"]
    if "kernel" in ruled_out:
        name, others = "dense", ["size-classed", "varlen"]
    for path in others:
        if path not in ruled_out and 100 * whole[path] < WORTH_IT * whole[name]:
            name = path
    return name


def _entries(blocks: tuple[AttentionBlock, ...]) -> int:
    return sum(block.places * block.width for block in blocks)


def blocks_of(capacity: Capacity) -> tuple[AttentionBlock, ...]:
    """The blocks that the capacity's promise allows or, without one, its limits alone."""
    if not capacity.order_statistics:
        return _cut(capacity.node_limit, capacity.graphs, capacity.max_graph_nodes)
    ends = [first for first, _ in capacity.order_statistics[1:]] + [capacity.graphs]
    return tuple(
        AttentionBlock(first, end - first, width)
        for (first, width), end in zip(capacity.order_statistics, ends, strict=True)
    )


def clipped(
    blocks: tuple[AttentionBlock, ...], nodes: int, graphs: int, largest: int
) -> tuple[AttentionBlock, ...]:
    """The parts of the blocks that batches with these limits can need.

    Args:
        blocks: by descending size.
        nodes: nodes of all graphs together, at most.
        graphs: number of graphs, at most.
        largest: nodes of the largest graph, at most.
    """
    found = []
    for block in blocks:
        left = min(block.graphs, max(1, graphs) - block.first)
        if left > 0:
            width = min(block.width, largest, nodes // (block.first + 1))
            found.append(AttentionBlock(block.first, left, max(1, width)))
    return tuple(found)


def _costliest(capacity: Capacity, blocks: tuple[AttentionBlock, ...]) -> list[tuple[int, int]]:
    """Numbers of graphs and their nodes in the batch with the most pairs: nodes fill the widest
    places first."""
    left, found = capacity.node_limit, []
    for block in blocks:
        full = min(block.graphs, left // block.width)
        left -= full * block.width
        found.append((full, block.width))
        if full < block.graphs:
            found.append((1, left))
            break
    return found


def _tile_entries(
    capacity: Capacity, costliest: list[tuple[int, int]], tile: tuple[int, int]
) -> int:
    """Tiles of each graph; a graph smaller than a tile still costs a whole tile."""
    rows, columns = tile
    total, seen = 0, 0
    for graphs, nodes in costliest:
        total += graphs * (-(-nodes // rows) * rows) * (-(-nodes // columns) * columns)
        seen += graphs
    return total + max(0, capacity.graph_limit - seen) * rows * columns


def _cut(nodes: int, graphs: int, widest: int) -> tuple[AttentionBlock, ...]:
    """Cuts the graphs, largest to smallest, into blocks that begin in geometric progression.

    Up to place ``nodes / widest`` every graph can be the widest. From there on the bound falls as
    one over the place, and of all cuts into ``k`` blocks one with equal ratios has the fewest
    entries; ``k`` is chosen where another block no longer saves what it costs.
    """
    first = max(1, nodes // widest)
    if first >= graphs:
        return (AttentionBlock(0, graphs, widest),)
    best, least = (AttentionBlock(0, graphs, widest),), graphs * widest * widest + ENTRIES_A_BLOCK
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
            blocks.append(AttentionBlock(begin, end - begin, width))
            cost += (end - begin) * width * width + ENTRIES_A_BLOCK
        if cost < least:
            best, least = tuple(blocks), cost
    return best
