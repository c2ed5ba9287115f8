"""From ASE's structures to graphs, and how many edges they have within a cutoff."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Data

from staticgraph.atoms.neighbours import pairs_within
from staticgraph.errors import BadGraph
from staticgraph.nn.context.search_room import SearchRoom
from staticgraph.nn.convert import context_of
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import EDGE_INDEX, Schema
from staticgraph.text.numeric_options import real_option

# What a potential returns, in the order of a tuple.
PROPERTIES = ("energy", "forces", "stress")
# Standard deviations of a batch's edges that searches have room for.
SIGMAS = 6


def to_data(structure: Any, dtype: torch.dtype = torch.float32) -> Data:
    """Returns a structure as a graph without edges.

    Args:
        structure: ``ase.Atoms``.
        dtype: of ``pos`` and ``cell``.

    Returns:
        ``z [N]`` int64, ``pos [N, 3]``, ``cell [1, 3, 3]`` and ``pbc [1, 3]`` bool, in ASE's units.

    Raises:
        TypeError: it is another object.
    """
    if not hasattr(structure, "get_positions"):
        raise TypeError(f"a {type(structure).__name__} is no structure: give ase.Atoms")
    return Data(
        z=torch.tensor(structure.get_atomic_numbers(), dtype=torch.int64),
        pos=torch.tensor(structure.get_positions(), dtype=dtype),
        cell=torch.tensor(np.asarray(structure.get_cell()), dtype=dtype)[None],
        pbc=torch.tensor(np.asarray(structure.get_pbc()))[None],
        num_nodes=len(structure),
    )


def with_unknown_fields(graph: Data, schema: Schema | None) -> Data:
    """Adds the fields that a graph to predict lacks, such as targets: NaN, or 0 in whole numbers.

    Args:
        graph: as :func:`to_data` makes it; changed in place.
        schema: the fields of the data that a runner was made for.
    """
    for item in schema or ():
        if item.name not in graph and item.name != EDGE_INDEX:
            rows = int(graph.num_nodes or 0) if item.level == "node" else item.rows
            dtype = getattr(torch, item.dtype)
            unknown = torch.nan if dtype.is_floating_point else 0
            graph[item.name] = torch.full((rows, *item.shape), unknown, dtype=dtype)
    return graph


def named_outputs(out: Any) -> Mapping[str, Any]:
    """Returns what a model returned by the names of :data:`PROPERTIES`."""
    if isinstance(out, Mapping):
        return out
    return dict(zip(PROPERTIES, out if isinstance(out, tuple) else (out,), strict=False))


def sizes_within(structures: Iterable[Any], cutoff: float) -> list[tuple[int, int]]:
    """Counts atoms and edges within a cutoff, for ``plan_buckets`` and ``plan_stream``.

    Args:
        structures: graphs as :func:`to_data` makes them (``cell`` and ``pbc`` may be missing), or
            ``ase.Atoms``; for atoms that move, also snapshots of a short run.
        cutoff: in the unit of the positions.

    Returns:
        ``(atoms, edges)`` of each.

    Raises:
        BadGraph: a graph has no positions.
    """
    cutoff = real_option("cutoff", cutoff, 0, more=True)
    return [(atoms, edges) for atoms, edges, _ in counts_within(structures, cutoff)]


def counts_within(structures: Iterable[Any], cutoff: float) -> list[tuple[int, int, int]]:
    """Counts atoms, edges within a cutoff, and pairs of edges that follow each other without going
    back (DimeNet's triplets); as :func:`sizes_within`."""
    cutoff = real_option("cutoff", cutoff, 0, more=True)
    counts = []
    for number, structure in enumerate(structures):
        data: Any = structure
        if not isinstance(structure, Data):
            data = to_data(structure, torch.float64)
        if data.pos is None:
            raise BadGraph(f"graph {number} has no 'pos', the positions that edges follow from")
        points = data.pos.double().numpy()
        cell = data.get("cell")
        box = np.zeros((3, 3)) if cell is None else cell[0].double().numpy()
        pbc = np.zeros(3, bool) if data.get("pbc") is None else data.pbc[0].numpy()
        target = pairs_within(points, box, pbc, cutoff)[0]
        degrees = np.bincount(target, minlength=len(points))
        counts.append((len(points), len(target), int(degrees @ degrees) - len(target)))
    return counts


def fit_searches(
    model: nn.Module, graphs: Iterable[Any], plan: BucketPlan, cutoff: float
) -> SearchRoom:
    """Fits the shapes of ``radius_graph`` and of DimeNet's triplets in a model's forward to a data
    set, instead of to the most neighbours that a node may have.

    A bucket has rows for the mean of the graphs and six standard deviations of the sum over as many
    of them as it takes, drawn at random; more is an overflow, which no step passes over in silence.

    Args:
        model: before a runner has warmed it up. It gets a part called ``search_room``.
        graphs: as for :func:`sizes_within`.
        plan: the runner's.
        cutoff: of the model's searches.

    Raises:
        BadGraph: a graph has no positions.
    """
    nodes, edges, triplets = np.array(counts_within(graphs, cutoff), np.float64).reshape(-1, 3).T
    per_node = _rows_each(nodes, edges, [(each.nodes, each.graphs) for each in plan.capacities])
    rows = [(per_node * each.nodes, each.graphs) for each in plan.capacities]
    room = SearchRoom(cutoff, per_node, _rows_each(edges, triplets, rows))
    model.search_room = room.train(model.training)
    context_of(model)
    return room


def _rows_each(
    owners: NDArray[np.float64], rows: NDArray[np.float64], buckets: Sequence[tuple[float, int]]
) -> float:
    """Rows per owner that suffice in every bucket of so many owners and graphs."""
    some = owners > 0
    if not some.any():
        return 1.0
    mean = rows.sum() / owners.sum()
    spread = float(np.std(rows - mean * owners))
    most = float((rows[some] / owners[some]).max())
    return max(min(most, mean + SIGMAS * spread * graphs**0.5 / n) for n, graphs in buckets)


def edges_per_atom(plan: BucketPlan | Sequence[Any], room: float = 1.0) -> float:
    """Returns the ``per_atom`` of a :class:`~staticgraph.atoms.NeighbourSearch` with which every
    bucket of a plan over :func:`sizes_within` has room for its edges.

    Args:
        plan: made from sizes that count edges within the cutoff.
        room: a factor, for atoms that come closer to each other than in those structures.
    """
    capacities = plan.capacities if isinstance(plan, BucketPlan) else plan
    return room * max(capacity.edges / capacity.nodes for capacity in capacities)
