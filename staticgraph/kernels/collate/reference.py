"""Reference for :func:`collate` in eager torch: graph ids -> the arrays of a batch.

Uses static shapes only: each row of the batch searches the start offsets for its graph, and from
there finds its row in the store. Nothing is read on the host and no shape depends on the data, so
it can be recorded as it is, and compiles to one graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.collate.arguments import LINE, ZERO


class _Places(NamedTuple):
    """Where the graphs of a batch are in the store and in the batch."""

    graph: Tensor
    """``[G]`` positions in the store, 0 where there is none."""
    real: Tensor
    """``[G]`` bool."""
    node_starts: Tensor
    """``[G + 1]``, padding graphs included: ``ptr``."""
    edge_starts: Tensor
    """``[G + 1]``, all real edges from the first padding graph on."""
    counts: Tensor
    """``[3]``: real nodes, edges, graphs."""


def collate_reference(
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
    """Writes every element of ``out``.

    Args:
        ids: ``[G]`` int32, positions in the store, followed by -1.
        structure, columns, levels, widths, paddings, apart, paired, out: as in
            :class:`~staticgraph.kernels.collate.arguments.Arguments`.
    """
    nodes, edges = len(out[1]), out[0].size(1)
    offsets = structure[:2]
    places = _places(ids, offsets, nodes)
    node_count, edge_count, _ = places.counts.unbind()
    v, k = (torch.arange(rows, device=ids.device) for rows in (nodes + 1, edges))
    spare_nodes, spare_edges = nodes - node_count, edges - edge_count
    step = (spare_nodes > 1).long() if apart else torch.zeros_like(spare_nodes)
    span = spare_nodes - step  # number of padding nodes that padding edges are spread over
    batch, node_row, real_node = _rows(v[:-1], places.node_starts, places, offsets[0], node_count)
    owner, edge_row, real_edge = _rows(k, places.edge_starts, places, offsets[1], edge_count)
    first_node = places.node_starts[owner]
    second = (k - edge_count) % 2 if paired else torch.zeros_like(k)
    target = node_count + (k - edge_count - second) * span // spare_edges.clamp(min=1)
    src = torch.where(real_edge, first_node + structure[2][edge_row], target + step * (1 - second))
    dst = torch.where(real_edge, first_node + structure[3][edge_row], target + step * second)
    arrays = [torch.stack([src, dst]), batch, places.node_starts, ids, places.counts]
    arrays += [real_node, real_edge, places.real]
    if len(structure) > 4:
        first_edge = places.edge_starts[batch]
        for local, shift in ((structure[4], torch.zeros_like(step)), (structure[5], step)):
            before = (v - node_count - shift).clamp(min=0) * spare_edges
            padding = edge_count + torch.minimum(spare_edges, (before + span - 1) // span)
            real = first_edge + local[node_row]
            arrays.append(torch.where(v < node_count, torch.cat([real, real[:1]]), padding))
        arrays.append(torch.where(real_edge, places.edge_starts[owner] + structure[6][edge_row], k))
    last = [(count - 1).clamp(min=0) for count in places.counts.unbind()]
    # Padding nodes copy the destination and the source of the last edge in turn.
    ends = last[0].expand(2)
    if edges:
        last_edge = torch.stack([dst, src]).index_select(1, last[1].view(1)).view(2)
        ends = torch.where(edge_count > 0, last_edge, ends)
    v = v[:-1]
    turns = ends[(v - node_count) % 2]
    rows = (
        (node_row, real_node, torch.where(real_node, v, turns)),
        (edge_row, real_edge, k.minimum(last[1])),
        (places.graph, places.real, torch.arange(len(ids), device=ids.device).minimum(last[2])),
    )
    for number, (column, level) in enumerate(zip(columns, levels, strict=True)):
        row, real, copied = rows[level]
        padding = paddings[number]
        if padding == LINE:
            copied = torch.where(real, v, ends[0])
        row = row if padding == ZERO else row[copied]
        there = real[:, None] if padding == ZERO else places.counts[level] > 0
        value = torch.where(there, column[row], 0).to(out[len(arrays)].dtype)
        if padding == LINE:
            shifted = value[:, 0] + (v - node_count).to(value.dtype)
            value[:, 0] = torch.where(real, value[:, 0], shifted)
        arrays.append(value)
    for target, value in zip(out, arrays, strict=True):
        target.copy_(value)


def _places(ids: Tensor, offsets: list[Tensor], nodes: int) -> _Places:
    graphs = len(ids)
    real = ids >= 0
    graph = ids.clamp(min=0).long()
    count = real.sum()
    totals, starts = [], []
    for offset in offsets:
        length = torch.where(real, offset[graph + 1] - offset[graph], 0).long()
        ends = length.cumsum(0)
        totals.append(ends[-1])
        starts.append(torch.cat([ends - length, ends[-1:]]))
    number = torch.arange(graphs + 1, device=ids.device)
    spread = (number - count) * (nodes - totals[0]) // (graphs - count)
    ptr = torch.where(number < count, starts[0], totals[0] + spread)
    return _Places(graph, real, ptr, starts[1], torch.stack([*totals, count]))


def _rows(
    row: Tensor, starts: Tensor, places: _Places, offsets: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, for rows of the batch, their graph, their row in the store, and whether they are
    real."""
    owner = torch.searchsorted(starts, row, right=True) - 1
    owner = owner.clamp(max=len(places.graph) - 1)
    real = row < count
    store_row = offsets[places.graph[owner]] + row - starts[owner]
    return owner, torch.where(real, store_row, 0), real
