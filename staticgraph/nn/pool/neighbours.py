"""``radius_graph`` and ``knn_graph`` of fixed shape, for models that find edges in their forward.

PyG finds as many edges as there are, so their number is data. Here each node has a fixed number of
places for its neighbours, ``max_num_neighbors`` or ``k``, and a place without a neighbour holds a
padding edge, which joins two padding nodes: nothing can overflow, and no number is read. Candidates
are the nodes of the same graph alone, ``[N, M]`` pairs for a bucket whose largest graph has ``M``
nodes. DimeNet's triplets of two such edges have a place for every pair of places.

Most places may be empty: molecules of g2 have 6 of 32 neighbours within 5 A. In eager, where shapes
are free, empty places are left out. In fixed shapes the first of the others are taken, as many as
the model's :class:`~staticgraph.nn.context.search_room.SearchRoom` says, and more are an overflow.

Where a node has more than ``max_num_neighbors`` within the radius, those that come first in the
graph are taken, as pyg-lib does on a GPU; on a CPU, pyg-lib takes those that its tree finds first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import knn_graph, radius_graph
from torch_geometric.nn.models.dimenet import triplets

from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import RowKind


def static_functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The searches among the nodes of each graph that have a form of fixed shape."""
    return {
        radius_graph: static_radius_graph,
        knn_graph: static_knn_graph,
        triplets: static_triplets,
    }


def static_radius_graph(
    context: BatchContext,
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """``[N, D]`` to ``[2, E]`` int64: pairs of nodes of one graph that are closer than ``r``, in
    ``max_num_neighbors`` places per node."""
    candidates, squared = _pairs(context, x, batch, loop)
    near = squared < r * r
    rank = near.cumsum(1) - 1
    place = torch.where(near & (rank < max_num_neighbors), rank, max_num_neighbors)
    neighbours = candidates.new_full((len(x), max_num_neighbors + 1), -1)
    neighbours = neighbours.scatter(1, place, candidates)[:, :max_num_neighbors]
    room = context.search_room
    return _edges(context, radius_graph, neighbours, flow, None if room is None else room.per_node)


def static_knn_graph(
    context: BatchContext,
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """``[N, D]`` to ``[2, E]`` int64: the nearest nodes of the same graph, nearest first, in ``k``
    places per node."""
    if cosine:
        x = torch.nn.functional.normalize(x, dim=-1)
    candidates, squared = _pairs(context, x, batch, loop)
    most = min(k, candidates.size(1))
    squared, order = squared.topk(most, dim=1, largest=False)
    neighbours = torch.where(squared < torch.inf, candidates.gather(1, order), -1)
    neighbours = torch.nn.functional.pad(neighbours, (0, k - most), value=-1)
    return _edges(context, knn_graph, neighbours, flow)


def static_triplets(
    context: BatchContext, edge_index: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """DimeNet's triplets ``k -> j -> i`` of edges that a search found, ``K`` places per node.

    Returns:
        Targets and sources of the edges ``[E]``; the nodes ``i``, ``j`` and ``k`` and the edges
        ``k -> j`` and ``j -> i`` of each triplet, all int64 ``[T]``. A padding triplet is of two
        padding nodes and two padding edges.

    Raises:
        NotStatic: the edges were not found by ``radius_graph`` or ``knn_graph`` in this forward.
    """
    source, target = edge_index
    rows = context.rows_of(source)
    if rows.widest is None:
        raise NotStatic(
            "DimeNet's triplets need a bound on the edges into a node, as edges of radius_graph or "
            f"knn_graph in the forward have it; these are {rows.what}"
        )
    edges, most = len(source), rows.widest
    # The edges into each node: real ones, in order of their target.
    order = torch.where(rows.mask, target, num_nodes).argsort(stable=True)
    counts = target.new_zeros(num_nodes).scatter_add(0, target, rows.mask.long())
    starts = counts.cumsum(0) - counts
    place = torch.arange(most, device=source.device)
    before = order[(starts[source][:, None] + place).clamp(0, edges - 1)]  # [E, K], k -> j
    real = (place < counts[source][:, None]) & rows.mask[:, None]
    real = (real & (source[before] != target[:, None])).reshape(-1)
    room = context.search_room
    places, real = _taken(context, real, None if room is None else room.per_edge * edges)
    real, total = _padded_to_free(context, triplets, real)
    number = torch.arange(max(edges, total), device=source.device)
    # Edges at even distances, or the last, which is padding, in place of real ones.
    padding_edge = number[:total] * edges // max(total, 1)
    padding_edge = torch.where(rows.mask[padding_edge], edges - 1, padding_edge)

    def rows_or(values: Tensor, padding: Tensor) -> Tensor:
        """Values ``[E, K]`` of real triplets, ``[T]``, and padding."""
        flat = values.expand(edges, most).reshape(-1)
        flat = flat if places is None else flat[places]
        return torch.where(real, torch.nn.functional.pad(flat, (0, total - len(flat))), padding)

    of_edge = number[:edges, None]
    context.register(total, RowKind("triplets of a search for neighbours", real, edges))
    return (
        target,
        source,
        rows_or(target[:, None], target[padding_edge]),
        rows_or(source[:, None], source[padding_edge]),
        rows_or(source[before], target[padding_edge]),
        rows_or(before, padding_edge),
        rows_or(of_edge, padding_edge),
    )


def _pairs(
    context: BatchContext, x: Tensor, batch: Tensor | None, loop: bool
) -> tuple[Tensor, Tensor]:
    """The nodes that a node may be joined to, and how far they are.

    Returns:
        ``[N, M]`` int64, nodes; and ``[N, M]``, squared distances without a derivative, infinite
        where there is no node.

    Raises:
        NotStatic: ``x`` has no row per node of the batch, or ``batch`` is missing.
    """
    rows = context.rows_of(x)
    if rows.counted != "node" or batch is None:
        raise NotStatic(
            "radius_graph and knn_graph search among the nodes of each graph of the batch: pass "
            f"batch=batch and a row per node; these are {rows.what}"
            + ("" if batch is not None else ", without batch")
        )
    place, nodes = context.dense(), len(x)
    members = place.node_of_place.view(place.graphs, place.width)
    owner = batch.clamp(max=place.graphs - 1)
    candidates = members[owner]  # [N, M]
    itself = torch.arange(nodes, device=x.device)[:, None]
    possible = (candidates < nodes) & rows.mask[:, None]
    if not loop:
        possible = possible & (candidates != itself)
    points = x.detach()
    apart = points[candidates.clamp(max=nodes - 1)] - points[:, None]
    squared = apart.view(*candidates.shape, -1).square().sum(-1)
    return candidates, torch.where(possible, squared, torch.inf)


def _edges(
    context: BatchContext,
    function: Any,
    neighbours: Tensor,
    flow: str,
    per_node: float | None = None,
) -> Tensor:
    """Edges of ``[N, K]`` neighbours, -1 where there is none, in order of the searching node; at
    most so many rows per node."""
    nodes, most = neighbours.shape
    centre = torch.arange(nodes, device=neighbours.device)[:, None].expand(nodes, most)
    source, target = neighbours.reshape(-1), centre.reshape(-1)
    places, real = _taken(context, source >= 0, per_node and per_node * nodes)
    source = source.clamp(min=0)
    if places is not None:
        source, target = source[places], target[places]
    real, edges = _padded_to_free(context, function, real)
    missing = (0, edges - len(source))
    source, target = (torch.nn.functional.pad(each, missing) for each in (source, target))
    ends = padding_ends(context.present.node_mask, edges)
    source, target = (torch.where(real, *each) for each in zip((source, target), ends, strict=True))
    widest = most if flow == "source_to_target" else None
    what = "edges of a search for neighbours"
    context.register(edges, RowKind(what, real, nodes, widest=widest))
    if flow not in ("source_to_target", "target_to_source"):
        raise ValueError(f"flow={flow!r}: expected 'source_to_target' or 'target_to_source'")
    ends = (source, target) if flow == "source_to_target" else (target, source)
    return torch.stack(ends)


def _taken(context: BatchContext, real: Tensor, room: float | None) -> tuple[Tensor | None, Tensor]:
    """The places of rows that are taken, None for all; and which rows are real, of which the last
    is none.

    Args:
        real: ``[P]`` bool, which places are not empty; not the last.
        room: the most rows in fixed shapes; None for no limit.
    """
    if context.real is not None:
        places = real.nonzero().view(-1)
        return places, torch.nn.functional.pad(real[places], (0, 1))
    if room is None or room >= len(real):
        return None, real
    rows = math.ceil(room)
    context.overflows.append(real.sum() > rows)
    places = first_places(real, rows)
    return places.clamp(min=0), torch.nn.functional.pad(places >= 0, (0, 1))


def first_places(real: Tensor, rows: int) -> Tensor:
    """``[rows]`` int64: the first places of a mask that are real, then -1.

    ``torch.nonzero_static`` was not tried in a recording.
    """
    number = torch.arange(rows, device=real.device) + 1
    places = torch.searchsorted(real.cumsum(0), number)
    return torch.where(places < len(real), places, -1)


def _padded_to_free(context: BatchContext, function: Any, real: Tensor) -> tuple[Tensor, int]:
    """A mask of rows, longer so that its length has no meaning yet in this forward; and its
    length."""
    total = context.free_size(len(real), function)
    return torch.nn.functional.pad(real, (0, total - len(real))), total


def padding_ends(mask: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Sources and targets of ``rows`` edges between padding nodes, ascending.

    They are spread evenly, since the edges of one node are summed one after another, and each joins
    a node and the next, since a distance of zero has no second derivative; a single padding node is
    joined to itself.

    Args:
        mask: ``[N]`` bool, True on real nodes; what follows the last of them is padding.
    """
    last = len(mask) - 1
    number = torch.arange(max(rows, len(mask)), device=mask.device)
    first = torch.where(mask, number[: len(mask)] + 1, 0).amax().clamp(max=last)
    spare = last - first  # nodes that have a next one
    target = (first + number[:rows] * spare.clamp(min=1) // max(rows, 1)).clamp(0, last)
    return target + (spare > 0), target
