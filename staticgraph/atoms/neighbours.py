"""Neighbours of atoms in fixed shape: edges that are found from positions at every step.

The problem: the number of pairs within a cutoff changes with every step, and a shape that changes
can be neither compiled once nor recorded. The idea: edges have a fixed number of rows, real ones
first and in order of destination, padding after them; whether there were more than fit is a flag on
the device, which no step reads. The invariant: an overflow never passes in silence. Inside a
runner's step it makes the outputs NaN, so that the step is refused, and outside it is an error.

Two ways find the same edges. A cell list (vesin, on the host) takes time in proportion to the
atoms. Pairs within each graph, tried over a fixed block of images, have a shape that depends on
nothing but the bucket, and so can be compiled and recorded; they suit molecules and small cells.
With a skin a cell list is kept while no atom has moved half of it (Verlet 1967, Phys. Rev. 159).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from staticgraph.errors import GraphTooLarge, MissingPackage
from staticgraph.nn.context.bound_batch import RowKind, present, traced_here
from staticgraph.nn.pool.neighbours import first_places, padding_ends
from staticgraph.text.numeric_options import real_option


@dataclass(frozen=True, slots=True)
class NeighbourList:
    """Edges between atoms, in order of destination; ``E`` rows, of which ``count`` are real.

    Attributes:
        edge_index: ``[2, E]`` int64, source and destination, as PyG has them; padding edges join
            padding atoms.
        shift: ``[E, 3]`` of the positions' dtype: the periodic image of the source, in cells.
        mask: ``[E]`` bool, True on real edges.
        count: 0-dim int64, the number of edges within the cutoff, whether they fit or not.
        overflow: 0-dim bool, whether some did not fit: more edges than rows, or images farther away
            than were tried.
    """

    edge_index: Tensor
    shift: Tensor
    mask: Tensor
    count: Tensor
    overflow: Tensor

    def vectors(
        self, pos: Tensor, cell: Tensor | None = None, graph: Tensor | None = None
    ) -> Tensor:
        """``[E, 3]``: from the destination to the source's image, with derivatives.

        Args:
            pos: ``[N, 3]``.
            cell: ``[G, 3, 3]``, rows are the cell's vectors; not needed without periodic axes.
            graph: ``[N]`` int64, the graph of each atom; needed with ``cell``.
        """
        source, target = self.edge_index
        apart = pos[source] - pos[target]
        if cell is None:
            return apart
        assert graph is not None, "vectors(pos, cell) needs graph, the graph of each atom"
        return apart + torch.einsum("ei,eij->ej", self.shift, cell[graph[target]])


def neighbours(
    pos: Tensor,
    cell: Tensor | None = None,
    pbc: Tensor | None = None,
    graph: Tensor | None = None,
    *,
    cutoff: float,
    capacity: int,
    mask: Tensor | None = None,
    largest: int | None = None,
    images: tuple[int, int, int] | None = None,
    candidates: Candidates | None = None,
) -> NeighbourList:
    """Finds all pairs of atoms of one graph that are closer than ``cutoff``, periodic images too.

    Args:
        pos: ``[N, 3]``; positions may be outside their cell.
        cell: ``[G, 3, 3]``, rows are the vectors of the cell; None without periodic axes. Vectors
            of axes that are not periodic are not read.
        pbc: ``[G, 3]`` bool, which axes are periodic; None is all of them where there is a cell.
        graph: ``[N]`` int64, ascending: the graph of each atom; None is one graph.
        cutoff: in the unit of ``pos``.
        capacity: rows of edges, ``E``; in a runner's forward some more, if rows of another kind
            have the same number.
        mask: ``[N]`` bool, True on real atoms; in a runner's forward the batch's own. By default
            all are real, which leaves no atom for padding edges: ``capacity`` is then filled
            exactly.
        largest: the most atoms of a graph; in a runner's forward the bucket's.
        images: how many images are tried along each axis in either direction, as
            :func:`images_within` counts them: pairs within each graph are then compared, in shapes
            that do not depend on data. None takes a cell list, except in a step that is compiled or
            recorded for a device, where there must be no periodic axis.
        candidates: the pairs of an earlier cell list, with a skin.

    Raises:
        GraphTooLarge: outside a runner's forward, if more edges than ``capacity`` were found.
        ValueError: a shape is wrong, a periodic search without ``images`` is traced, or there is
            no atom of padding for padding edges to join.
    """
    binding = present()
    batch = None if binding is None else binding.batch
    if batch is not None and len(pos) == batch.num_nodes:
        mask = batch.node_mask if mask is None else mask
        largest = batch.capacity.max_graph_nodes if largest is None else largest
        graph = batch.batch if graph is None else graph
    _check_shapes(pos, cell, pbc, graph, mask)
    if graph is None:
        graph = torch.zeros(len(pos), dtype=torch.int64, device=pos.device)
    if mask is None:
        mask = torch.ones(len(pos), dtype=torch.bool, device=pos.device)
    if cell is not None and pbc is None:
        pbc = torch.ones(len(cell), 3, dtype=torch.bool, device=pos.device)
    if binding is not None:
        # Layers tell rows apart by their number.
        capacity = binding.context.free_size(capacity, neighbours)
    if images is None and pos.is_cuda and (traced_here() or _is_capturing(pos)):
        if cell is not None:
            raise ValueError(
                "neighbours() of periodic cells in a compiled or recorded step compares pairs over "
                "a fixed number of images: pass images=sg.atoms.images_within(cell, pbc, cutoff)"
            )
        images = (0, 0, 0)
    with torch.no_grad():
        if images is None:
            number = -1 if candidates is None else candidates.number
            arrays = _cell_list(pos, cell, pbc, graph, mask, cutoff, capacity, number)
            near = NeighbourList(*arrays)
        else:
            width = largest or len(pos)
            near = _by_pairs(pos, cell, pbc, graph, mask, cutoff, capacity, width, images)
    if binding is not None:
        binding.context.overflows.append(near.overflow)
        rows = RowKind("edges of a search for neighbours", near.mask, len(pos))
        binding.context.register(capacity, rows)
    elif not traced_here():
        _check_room(near, mask, cutoff)
    return near


def _check_room(near: NeighbourList, mask: Tensor, cutoff: float) -> None:
    """Refuses what would lose edges, or join real atoms by padding.

    Raises:
        GraphTooLarge: there are more edges than rows, or too few images were tried.
        ValueError: there are rows of padding, and no atom of padding.
    """
    count, capacity = int(near.count), len(near.mask)
    if bool(near.overflow):
        raise GraphTooLarge(
            f"{count} pairs of atoms are within {cutoff:g}, and capacity={capacity} rows hold "
            "fewer, or images= is too small: raise it"
        )
    if count < capacity and bool(mask.all()):
        raise ValueError(
            f"{count} pairs of atoms are within {cutoff:g}, and the other {capacity - count} rows "
            "are padding, which must join atoms of padding: add one and pass mask="
        )


class NeighbourSearch(nn.Module):
    """:func:`neighbours` as a layer, with a capacity that follows the bucket's number of atoms.

    Args:
        cutoff: in the unit of the positions.
        per_atom: rows of edges per row of atoms, as :func:`~staticgraph.atoms.edges_per_atom`
            plans it.
        images: see :func:`neighbours`; None for molecules, for any atoms in eager and on a CPU.
        skin: a cell list also holds the pairs that are farther apart by this, and is made again
            only when an atom has moved half of it, or a cell has changed. A step that is compiled
            or recorded for a device compares all pairs of each graph, and reads no skin.

    Attributes:
        candidates: what is kept, by rows of atoms; ``candidates.builds`` counts the cell lists.
    """

    _staticgraph_overflows = True  # named by an error of a loss that is not finite

    def __init__(
        self,
        cutoff: float,
        per_atom: float,
        images: tuple[int, int, int] | None = None,
        skin: float = 0.0,
    ) -> None:
        super().__init__()
        self.candidates: Candidates = Candidates(real_option("skin", skin, 0))
        self.cutoff: float = real_option("cutoff", cutoff, 0, more=True)
        self.per_atom: float = real_option("per_atom", per_atom, 0)
        self.images = images

    def forward(
        self,
        pos: Tensor,
        cell: Tensor | None = None,
        pbc: Tensor | None = None,
        graph: Tensor | None = None,
    ) -> NeighbourList:
        """Finds the neighbours of ``pos`` ``[N, 3]`` in ``ceil(per_atom * N)`` rows of edges."""
        capacity = self.capacity(len(pos))
        return neighbours(
            pos,
            cell,
            pbc,
            graph,
            cutoff=self.cutoff,
            capacity=capacity,
            images=self.images,
            candidates=self.candidates,
        )

    def capacity(self, atoms: int) -> int:
        """Rows of edges for so many rows of atoms."""
        return max(8, -int(-self.per_atom * atoms // 1))

    def grow(self, factor: float = 1.25) -> None:
        """Makes more room after an overflow; a runner is then warmed up again."""
        self.per_atom *= factor

    def extra_repr(self) -> str:
        """What ``print(model)`` shows of it."""
        return f"cutoff={self.cutoff:g}, per_atom={self.per_atom:.3g}, images={self.images}"


def images_within(
    cell: Any, pbc: Any = (True, True, True), cutoff: float = 5.0
) -> tuple[int, int, int]:
    """Returns how many images along each axis can hold an atom within the cutoff, for the thinnest
    of some cells.

    Args:
        cell: ``[3, 3]`` or ``[G, 3, 3]``, rows are the vectors.
        pbc: ``[3]`` or ``[G, 3]`` bool.
        cutoff: in the unit of the cell.
    """
    cells = torch.as_tensor(np.asarray(cell), dtype=torch.float64).reshape(-1, 3, 3)
    periodic = torch.as_tensor(np.asarray(pbc)).bool().reshape(-1, 3).expand(len(cells), 3)
    reach = _reach(torch.linalg.inv(_completed(cells, periodic)), periodic, cutoff)
    a, b, c = reach.amax(0).tolist()
    return a, b, c


def _is_capturing(pos: Tensor) -> bool:
    return pos.is_cuda and torch.cuda.is_current_stream_capturing()


def _check_shapes(
    pos: Tensor,
    cell: Tensor | None,
    pbc: Tensor | None,
    graph: Tensor | None,
    mask: Tensor | None,
) -> None:
    if pos.dim() != 2 or pos.size(1) != 3:
        raise ValueError(f"pos has shape {list(pos.shape)}: expected [N, 3]")
    for name, value, rest in (("cell", cell, (3, 3)), ("pbc", pbc, (3,))):
        if value is not None and tuple(value.shape[1:]) != rest:
            expected = ", ".join(str(size) for size in rest)
            raise ValueError(f"{name} has shape {list(value.shape)}: expected [G, {expected}]")
    for name, value in (("graph", graph), ("mask", mask)):
        if value is not None and len(value) != len(pos):
            raise ValueError(f"{name} has {len(value)} rows, and pos has {len(pos)}")
    if cell is None and pbc is not None and not traced_here() and bool(pbc.any()):
        raise ValueError("pbc has periodic axes, but there is no cell: pass cell [G, 3, 3]")


# ---------------------------------------------------------------- pairs, over a block of images


def _by_pairs(
    pos: Tensor,
    cell: Tensor | None,
    pbc: Tensor | None,
    graph: Tensor,
    mask: Tensor,
    cutoff: float,
    capacity: int,
    largest: int,
    images: tuple[int, int, int],
) -> NeighbourList:
    """Compares every atom with those of its graph in each image: ``[N, largest, images]``."""
    atoms = len(pos)
    place = torch.arange(largest, device=pos.device)
    begin, end = (torch.searchsorted(graph, graph, right=right)[:, None] for right in (False, True))
    source = (begin + place).clamp(0, atoms - 1)  # [N, M]
    real = (begin + place < end) & mask[:, None] & mask[source]
    itself = source == torch.arange(atoms, device=pos.device)[:, None]
    outside = mask.new_zeros(())
    if cell is None or pbc is None:
        steps = pos.new_zeros(1, 3)
        apart = (pos[source] - pos[:, None])[:, :, None]
        shifts = None
        real = (real & ~itself)[:, :, None]
    else:
        ranges = [torch.arange(-each, each + 1) for each in images]
        steps = torch.cartesian_prod(*ranges).to(pos)  # [I, 3]
        inverse = torch.linalg.inv(_completed(cell, pbc))
        outside = ((_reach(inverse, pbc, cutoff) > steps.new_tensor(images)) & pbc).any()
        # Whole cells that each atom is away from its own.
        home = torch.where(pbc[graph], torch.einsum("ni,nij->nj", pos, inverse[graph]).floor(), 0)
        periodic = torch.where(pbc[:, :, None], cell, 0)
        inside = pos - torch.einsum("ni,nij->nj", home, periodic[graph])
        offsets = torch.einsum("si,gij->gsj", steps, periodic)  # [G, I, 3]
        apart = (inside[source] - inside[:, None])[:, :, None] + offsets[graph][:, None]
        shifts = steps + (home[:, None] - home[source])[:, :, None]
        moves = (steps != 0).any(-1)
        allowed = ((steps == 0) | pbc[:, None]).all(-1)[graph]  # [N, I]
        real = real[:, :, None] & allowed[:, None] & (~itself[:, :, None] | moves)
    near = (real & (apart.square().sum(-1) < cutoff * cutoff)).reshape(-1)
    places = first_places(near, capacity)
    valid = places >= 0
    places = places.clamp(min=0)
    pair = places // len(steps)
    first, second = padding_ends(mask, capacity)
    ends = torch.stack(
        [
            torch.where(valid, source.reshape(-1)[pair], first),
            torch.where(valid, pair // largest, second),
        ]
    )
    shift = pos.new_zeros(capacity, 3)
    if shifts is not None:
        shift = torch.where(valid[:, None], shifts.reshape(-1, 3)[places], 0)
    count = near.sum()
    return NeighbourList(ends, shift, valid, count, (count > capacity) | outside)


def _completed(cell: Tensor, pbc: Tensor) -> Tensor:
    """Cells whose axes that are not periodic have vectors of length one across the others."""
    a, b, c = torch.where(pbc[:, :, None], cell, 0).unbind(1)
    axes = torch.eye(3, dtype=cell.dtype, device=cell.device)

    def across(vector: Tensor, other: Tensor) -> Tensor:
        """A unit vector that is orthogonal to both; to one, where the other is zero."""
        apart = torch.linalg.cross(vector, other)
        # Any axis that is far from the direction will do where there is but one vector, or none.
        direction = torch.where(vector.square().sum(-1, keepdim=True) > 0, vector, other)
        helper = axes[direction.abs().argmin(-1)]
        single = torch.linalg.cross(direction, helper)
        none = direction.square().sum(-1, keepdim=True) == 0
        single = torch.where(none, axes[0], single)
        chosen = torch.where(apart.square().sum(-1, keepdim=True) > 0, apart, single)
        return chosen / chosen.square().sum(-1, keepdim=True).sqrt()

    a = torch.where(pbc[:, :1], a, across(b, c))
    b = torch.where(pbc[:, 1:2], b, across(c, a))
    c = torch.where(pbc[:, 2:], c, across(a, b))
    return torch.stack([a, b, c], 1)


def _reach(inverse: Tensor, pbc: Tensor, cutoff: float) -> Tensor:
    """``[G, 3]`` int64: images along each axis within the cutoff, atoms being in their cell."""
    heights = 1 / inverse.square().sum(1).sqrt()
    return torch.where(pbc, (cutoff / heights).ceil(), 0).long()


# ---------------------------------------------------------------- cell lists

_NUMBERS = itertools.count()
_CANDIDATES: WeakValueDictionary[int, Candidates] = WeakValueDictionary()


class Candidates:
    """The pairs of cell lists with a skin, while they hold.

    A pair that is within the cutoff now was within the cutoff and the skin when the list was made,
    if neither atom has moved half of the skin since and nothing else has changed. Whose atoms they
    are does not matter.

    Args:
        skin: in the unit of the positions; 0 keeps nothing.

    Attributes:
        builds: how many cell lists were made.
        number: by which a traced step names them.
    """

    def __init__(self, skin: float) -> None:
        self.skin = skin
        self.number: int = next(_NUMBERS)
        _CANDIDATES[self.number] = self
        self.builds: int = 0
        self._lists: dict[int, tuple[tuple[Tensor | None, ...], Tensor, Tensor]] = {}

    def within(
        self,
        pos: Tensor,
        cell: Tensor | None,
        pbc: Tensor | None,
        graph: Tensor,
        mask: Tensor,
        cutoff: float,
    ) -> tuple[Tensor, Tensor]:
        """Returns ``[2, n]`` int64 edges, by destination, and ``[n, 3]`` shifts, on the host.

        Args:
            pos, cell, pbc, graph, mask, cutoff: as for :func:`neighbours`.
        """
        whole = tuple(
            None if value is None else value.detach().cpu().clone()
            for value in (pos.double(), cell, pbc, graph, mask)
        )
        candidates = self._lists.get(len(pos))
        if candidates is None or not self._holds(candidates[0], whole):
            self.builds += 1
            candidates = (whole, *_pairs_by_graph(*whole, cutoff + self.skin))  # pyright: ignore
            if self.skin:
                self._lists[len(pos)] = candidates
        _, edges, shift = candidates
        if not self.skin:
            return edges, shift
        points, cells, _, owner, _ = whole
        assert points is not None
        assert owner is not None
        apart = points[edges[0]] - points[edges[1]]
        if cells is not None:
            apart = apart + torch.einsum("ei,eij->ej", shift, cells.double()[owner[edges[1]]])
        near = apart.square().sum(1) < cutoff * cutoff
        return edges[:, near], shift[near]

    def _holds(self, before: tuple[Tensor | None, ...], now: tuple[Tensor | None, ...]) -> bool:
        """Whether the same pairs are within the cutoff and the skin for all that matters."""
        same = all(
            a is b or (a is not None and b is not None and torch.equal(a, b))
            for a, b in zip(before[1:], now[1:], strict=True)
        )
        (points, *_, mask), moved = now, before[0]
        if not same or points is None or moved is None or mask is None:
            return False
        apart = (points - moved)[mask].square().sum(1)
        return not len(apart) or float(apart.max()) < (self.skin / 2) ** 2


@torch.library.custom_op("staticgraph::cell_list", mutates_args=())
def _cell_list(
    pos: Tensor,
    cell: Tensor | None,
    pbc: Tensor | None,
    graph: Tensor,
    mask: Tensor,
    cutoff: float,
    capacity: int,
    number: int,
) -> list[Tensor]:
    """The parts of a neighbour list, by the candidates of a number or by a new cell list."""
    candidates = _CANDIDATES.get(number) or Candidates(0.0)
    edges, shift = candidates.within(pos, cell, pbc, graph, mask, cutoff)
    return _padded(edges, shift, pos, mask, capacity)


@_cell_list.register_fake
def _(pos: Tensor, *arguments: object) -> list[Tensor]:
    capacity: Any = arguments[-2]
    ends = pos.new_empty((2, capacity), dtype=torch.int64)
    mask = pos.new_empty((capacity,), dtype=torch.bool)
    count = pos.new_empty((), dtype=torch.int64)
    return [ends, pos.new_empty((capacity, 3)), mask, count, mask.new_empty(())]


def _pairs_by_graph(
    pos: Tensor,
    cell: Tensor | None,
    pbc: Tensor | None,
    graph: Tensor,
    mask: Tensor,
    cutoff: float,
) -> tuple[Tensor, Tensor]:
    """Finds each graph's edges by vesin: ``[2, n]`` and shifts ``[n, 3]``, all on the host."""
    atoms = mask.nonzero()[:, 0]
    owner = graph[atoms]
    ends, shifts = [np.zeros((2, 0), np.int64)], [np.zeros((0, 3))]
    bounds = np.flatnonzero(np.diff(owner.numpy(), prepend=-1, append=-1)).tolist()
    for begin, end in itertools.pairwise(bounds):
        which = int(owner[begin])
        points = pos[atoms[begin:end]].numpy()
        box = np.zeros((3, 3)) if cell is None else cell[which].double().numpy()
        periodic = np.zeros(3, bool) if pbc is None else pbc[which].numpy()
        target, source, shift = pairs_within(points, box, periodic, cutoff)
        ends.append(atoms.numpy()[np.stack([source, target]) + begin])
        shifts.append(shift)
    return torch.from_numpy(np.concatenate(ends, 1)), torch.from_numpy(np.concatenate(shifts))


def _padded(edges: Tensor, shift: Tensor, pos: Tensor, mask: Tensor, capacity: int) -> list[Tensor]:
    """The parts of a neighbour list from edges of the host, in ``capacity`` rows on the device of
    ``pos``."""
    count = edges.size(1)
    padded = torch.stack(padding_ends(mask.cpu(), capacity))
    padded[:, : min(count, capacity)] = edges[:, :capacity]
    moved = torch.zeros(capacity, 3, dtype=pos.dtype)
    moved[: min(count, capacity)] = shift[:capacity].to(pos.dtype)
    return [
        padded.to(pos.device),
        moved.to(pos.device),
        torch.arange(capacity, device=pos.device) < count,
        torch.tensor(count, device=pos.device),
        torch.tensor(count > capacity, device=pos.device),
    ]


def pairs_within(
    points: np.ndarray, box: np.ndarray, periodic: np.ndarray, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the pairs of one structure by vesin's cell list, sorted by destination.

    Returns:
        destinations and sources, ``[E]`` int64, and shifts ``[E, 3]`` of the sources, in cells.

    Raises:
        MissingPackage: vesin is not installed.
    """
    try:
        from vesin import NeighborList
    except ImportError:
        raise MissingPackage("a cell list needs vesin: pip install 'staticgraph[atoms]'") from None
    if not len(points):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3))
    search = NeighborList(cutoff=cutoff, full_list=True)
    target, source, shift = search.compute(points, box, periodic.tolist(), "ijS")
    order = np.lexsort((*shift.T[::-1], source, target))
    return (
        target[order].astype(np.int64),
        source[order].astype(np.int64),
        shift[order].astype(np.float64),
    )
