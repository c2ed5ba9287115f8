"""``collate`` in Triton: two launches per batch, however many fields it has; no atomics.

The first launch is one program that sums the sizes of the graphs. In the second, every program
fills a block of node rows, edge rows or graph rows in all their arrays: a binary search over the
start offsets finds the graph of each row, which determines the row of the store to copy.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.collate.rows import copy_fields, owner_of
from staticgraph.kernels.launch import read

ROWS = 64
# Columns that a program copies at once; wider rows take several iterations.
COLUMNS = 64
# Buckets differ only in these, and should share one compiled kernel.
SIZES = ["all_nodes", "all_edges", "all_graphs", "node_programs", "edge_programs"]
# Graphs that the first kernel sums at once.
GRAPHS = 1024


@triton.jit(do_not_specialize=SIZES)
def collate_starts(
    ids,
    node_offsets,
    edge_offsets,
    ptr,
    edge_starts,
    graph_ids,
    counts,
    graph_mask,
    all_nodes,
    all_graphs,
    BLOCK: tl.constexpr,
):
    """The only program: the start of each graph's nodes and edges, padding graphs included, and the
    counts of real rows; ``BLOCK`` graphs at a time."""
    nodes = tl.full([], 0, tl.int64)
    edges = tl.full([], 0, tl.int64)
    graphs = tl.full([], 0, tl.int64)
    for start in range(0, all_graphs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        i = tl.load(ids + at, mask=at < all_graphs, other=-1).to(tl.int64)
        here = i >= 0
        n = read(node_offsets + i + 1, here, tl.int64)
        n -= read(node_offsets + i, here, tl.int64)
        e = read(edge_offsets + i + 1, here, tl.int64)
        e -= read(edge_offsets + i, here, tl.int64)
        tl.store(ptr + at, nodes + tl.cumsum(n, 0) - n, mask=here)
        tl.store(edge_starts + at, edges + tl.cumsum(e, 0) - e, mask=here)
        tl.store(graph_ids + at, i, mask=at < all_graphs)
        tl.store(graph_mask + at, here.to(tl.uint8), mask=at < all_graphs)
        nodes += tl.sum(n, 0)
        edges += tl.sum(e, 0)
        graphs += tl.sum(here.to(tl.int64), 0)
    tl.store(counts, nodes)
    tl.store(counts + 1, edges)
    tl.store(counts + 2, graphs)
    for start in range(0, all_graphs + 1, BLOCK):
        at = start + tl.arange(0, BLOCK)
        padding = (at >= graphs) & (at <= all_graphs)
        spread = (at - graphs) * (all_nodes - nodes) // (all_graphs - graphs)
        tl.store(ptr + at, nodes + spread, mask=padding)
        tl.store(edge_starts + at, tl.zeros([BLOCK], tl.int64) + edges, mask=padding)


@triton.jit
def padding_before(v, nodes, edges, all_edges, span, shift):
    """Returns the number of real edges plus the padding edges at padding nodes before
    ``v - shift``."""
    spare = all_edges - edges
    before = tl.maximum(v - nodes - shift, 0) * spare
    return edges + tl.minimum(spare, (before + span - 1) // span)


@triton.jit
def spread(counts, all_nodes, APART: tl.constexpr):
    """Returns, for the padding edges, how many nodes a source lies after its target, and the number
    of nodes they are spread over."""
    spare = all_nodes - tl.load(counts)
    step = (spare > 1).to(tl.int64) if APART else spare * 0
    return step, spare - step


@triton.jit
def last_ends(ids, edge_starts, structure, out, all_graphs, STEPS: tl.constexpr):
    """Returns the rows of the store that padding nodes copy in turn: the destination and the source
    of the last real edge, or the last real node where there is no edge."""
    nodes = tl.load(out[4])
    edges = tl.load(out[4] + 1)
    k = tl.maximum(edges - 1, 0)
    owner = owner_of(k, edge_starts, all_graphs, STEPS)
    i = tl.load(ids + owner, mask=edges > 0, other=0)
    row = tl.load(structure[1] + i).to(tl.int64) + k
    row -= tl.load(edge_starts + owner, mask=edges > 0, other=0)
    first = tl.load(structure[0] + i).to(tl.int64)
    dst = first + tl.load(structure[3] + row, mask=edges > 0, other=0)
    src = first + tl.load(structure[2] + row, mask=edges > 0, other=0)
    v = tl.maximum(nodes - 1, 0)
    owner = owner_of(v, out[2], all_graphs, STEPS)
    i = tl.load(ids + owner, mask=nodes > 0, other=0)
    last = tl.load(structure[0] + i).to(tl.int64) + v
    last -= tl.load(out[2] + owner, mask=nodes > 0, other=0)
    return tl.where(edges > 0, dst, last), tl.where(edges > 0, src, last)


@triton.jit
def node_rows(
    v,
    ids,
    edge_starts,
    structure,
    sources,
    out,
    targets,
    all_nodes,
    all_edges,
    all_graphs,
    STEPS: tl.constexpr,
    POINTERS: tl.constexpr,
    APART: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """Fills a block of node rows ``v`` in every array of nodes."""
    ptr, counts = out[2], out[4]
    nodes = tl.load(counts)
    inside = v < all_nodes
    here = v < nodes
    owner = owner_of(v, ptr, all_graphs, STEPS)
    i = tl.load(ids + owner, mask=here, other=0)
    first = read(structure[0] + i, here, tl.int64)
    row = first + v - tl.load(ptr + owner, mask=here, other=0)
    tl.store(out[1] + v, owner, mask=inside)
    tl.store(out[5] + v, here.to(tl.uint8), mask=inside)
    if POINTERS:
        edges = tl.load(counts + 1)
        step, span = spread(counts, all_nodes, APART)
        start = tl.load(edge_starts + owner, mask=here, other=0)
        by_target = start + tl.load(structure[4] + row, mask=here, other=0)
        by_source = start + tl.load(structure[5] + row, mask=here, other=0)
        padding = padding_before(v, nodes, edges, all_edges, span, 0)
        tl.store(out[8] + v, tl.where(here, by_target, padding), mask=v <= all_nodes)
        padding = padding_before(v, nodes, edges, all_edges, span, step)
        tl.store(out[9] + v, tl.where(here, by_source, padding), mask=v <= all_nodes)
    dst, src = last_ends(ids, edge_starts, structure, out, all_graphs, STEPS)
    row = tl.where(here, row, tl.where((v - nodes) % 2 == 0, dst, src))
    copy_fields(row, dst, v, here, nodes > v * 0, inside, sources, targets, v - nodes, FIELDS)


@triton.jit
def edge_rows(
    k,
    ids,
    edge_starts,
    structure,
    sources,
    out,
    targets,
    all_nodes,
    all_edges,
    all_graphs,
    STEPS: tl.constexpr,
    POINTERS: tl.constexpr,
    APART: tl.constexpr,
    PAIRED: tl.constexpr,
    FIELDS: tl.constexpr,
):
    """Fills a block of edge rows ``k`` in every array of edges."""
    ptr, counts = out[2], out[4]
    nodes = tl.load(counts)
    edges = tl.load(counts + 1)
    step, span = spread(counts, all_nodes, APART)
    inside = k < all_edges
    here = k < edges
    there = edges > k * 0
    copied = tl.minimum(k, tl.maximum(edges - 1, 0))  # padding edges copy the last real one
    owner = owner_of(copied, edge_starts, all_graphs, STEPS)
    i = tl.load(ids + owner, mask=there, other=0)
    start = tl.load(edge_starts + owner, mask=there, other=0)
    row = read(structure[1] + i, there, tl.int64) + copied - start
    node = tl.load(ptr + owner, mask=here, other=0)
    src = node + tl.load(structure[2] + row, mask=here, other=0)
    dst = node + tl.load(structure[3] + row, mask=here, other=0)
    second = (k - edges) % 2 if PAIRED else k * 0
    target = nodes + (k - edges - second) * span // tl.maximum(all_edges - edges, 1)
    tl.store(out[0] + k, tl.where(here, src, target + step * (1 - second)), mask=inside)
    tl.store(out[0] + all_edges + k, tl.where(here, dst, target + step * second), mask=inside)
    tl.store(out[6] + k, here.to(tl.uint8), mask=inside)
    if POINTERS:
        order = start + tl.load(structure[6] + row, mask=here, other=0)
        tl.store(out[10] + k, tl.where(here, order, k), mask=inside)
    copy_fields(row, row, k, here, there, inside, sources, targets, k, FIELDS)


@triton.jit
def graph_rows(g, ids, counts, sources, targets, all_graphs, FIELDS: tl.constexpr):
    """Fills a block of graph rows ``g`` in every field of graphs."""
    graphs = tl.load(counts + 2)
    here = g < graphs
    i = tl.load(ids + tl.minimum(g, tl.maximum(graphs - 1, 0))).to(tl.int64)
    copy_fields(i, i, g, here, graphs > g * 0, g < all_graphs, sources, targets, g, FIELDS)


@triton.jit(do_not_specialize=SIZES)
def collate_rows(
    ids,
    edge_starts,
    structure,
    sources,
    out,
    targets,
    all_nodes,
    all_edges,
    all_graphs,
    node_programs,
    edge_programs,
    STEPS: tl.constexpr,
    POINTERS: tl.constexpr,
    APART: tl.constexpr,
    PAIRED: tl.constexpr,
    NODE_FIELDS: tl.constexpr,
    EDGE_FIELDS: tl.constexpr,
    GRAPH_FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program: a block of node rows, edge rows or graph rows.

    ``structure`` and ``out`` are in the operator's order, ``sources`` and ``targets`` per level.
    Triton 3.6 cannot pass on a tuple out of a constant tuple, so fields are flat numbers.
    """
    program = tl.program_id(0)
    lanes = tl.arange(0, ROWS)
    if program < node_programs:
        node_rows(
            program.to(tl.int64) * ROWS + lanes,
            ids,
            edge_starts,
            structure,
            sources[0],
            out,
            targets[0],
            all_nodes,
            all_edges,
            all_graphs,
            STEPS,
            POINTERS,
            APART,
            NODE_FIELDS,
        )
    elif program < node_programs + edge_programs:
        edge_rows(
            (program - node_programs).to(tl.int64) * ROWS + lanes,
            ids,
            edge_starts,
            structure,
            sources[1],
            out,
            targets[1],
            all_nodes,
            all_edges,
            all_graphs,
            STEPS,
            POINTERS,
            APART,
            PAIRED,
            EDGE_FIELDS,
        )
    else:
        first = (program - node_programs - edge_programs).to(tl.int64) * ROWS
        graph_rows(first + lanes, ids, out[4], sources[2], targets[2], all_graphs, GRAPH_FIELDS)


def collate(
    ids: Tensor,
    structure: list[Tensor],
    columns: list[Tensor],
    levels: list[int],
    widths: list[int],
    paddings: list[int],
    apart: bool,
    paired: bool,
    out: list[Tensor],
) -> None:
    """Runs the operator in two launches."""
    all_nodes, all_edges, all_graphs = len(out[1]), out[0].size(1), len(ids)
    edge_starts = torch.empty(all_graphs + 1, dtype=torch.int64, device=ids.device)
    collate_starts[(1,)](
        ids,
        structure[0],
        structure[1],
        out[2],
        edge_starts,
        out[3],
        out[4],
        out[7],
        all_nodes,
        all_graphs,
        BLOCK=min(GRAPHS, triton.next_power_of_2(all_graphs + 1)),
    )
    by_level = [[n for n, level in enumerate(levels) if level == wanted] for wanted in range(3)]
    fields = [
        tuple(number for n in level for number in _field(widths[n], paddings[n]))
        for level in by_level
    ]
    outputs = len(out) - len(columns)
    # A row pointer has one entry more than there are nodes.
    programs = [triton.cdiv(rows, ROWS) for rows in (all_nodes + 1, all_edges)]
    programs.append(triton.cdiv(all_graphs, ROWS) if by_level[2] else 0)
    collate_rows[(sum(programs),)](
        ids,
        edge_starts,
        tuple(structure),
        # A level without fields gets a placeholder: an empty tuple is not a valid argument.
        tuple(tuple(columns[n] for n in level) or (ids,) for level in by_level),
        tuple(out[:outputs]),
        tuple(tuple(out[outputs + n] for n in level) or (ids,) for level in by_level),
        all_nodes,
        all_edges,
        all_graphs,
        programs[0],
        programs[1],
        STEPS=all_graphs.bit_length(),
        POINTERS=len(structure) > 4,
        APART=apart,
        PAIRED=paired,
        NODE_FIELDS=fields[0],
        EDGE_FIELDS=fields[1],
        GRAPH_FIELDS=fields[2],
        ROWS=ROWS,
    )


def _field(width: int, padding: int) -> tuple[int, ...]:
    return (width, min(COLUMNS, triton.next_power_of_2(width)), padding)
