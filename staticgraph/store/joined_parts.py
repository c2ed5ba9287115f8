"""Graphs of several stores as one: their schema and dtypes, and the pieces of each array.

Features, edges and permutations are concatenated; offsets and row pointers continue from part to
part. Each part keeps an array in the narrowest dtype for its own values; it is widened to the dtype
that all parts need. A part may be a whole store (:class:`Survey`) or some of its graphs
(:func:`gathered`). Invariant: the concatenation is what ``GraphStore.from_pyg`` of all graphs would
have kept, array by array.

A batch from a mapped store reads scattered pages and waits for each that is not in memory. If the
next rows are known, the system is advised to fetch them together in the background
(:func:`read_ahead`): it affects speed, never results.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.schema import Field, Schema
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.columns import Array, local_positions
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.objects import OnAccess
from staticgraph.store.structure import OFFSETS, by_block, level_of, offsets_name, rows_of

# Opens one part; called again in each pass, so that only one part is open at a time.
Part = Callable[[], GraphColumns]
NONE: Array = np.empty(0, np.uint8)
# Arrays with one more entry than rows, whose values continue from part to part.
CONTINUED = (*OFFSETS, "row_ptr")


class Survey:
    """The schema, lengths and dtypes of the concatenation of several parts.

    Attributes:
        schema: the schema of all parts.
        shapes: the shape over all parts of every array but the splits, by name.
        sizes: ``[n, C]`` in a narrow dtype: nodes, edges and the rows of each axis.
        starts: ``[parts + 1]`` int64, the first graph of each part.
        splits: the splits that all parts have, as positions in the whole.
        widest: for each array, a dtype that holds every part's dtype, without reading values.

    Raises:
        BadGraph: if a part's fields or host objects differ from those of the first.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        arrays: dict[str, list[tuple[np.dtype, tuple[int, ...]]]] = {}
        sizes: list[Array] = []
        splits: list[dict[str, IntArray]] = []
        starts, objects = [0], set[str]()
        for number, part in enumerate(parts):
            store = part()
            if not number:
                self.schema: Schema = store.schema
                objects = set(store.objects)
            require_same_fields(
                self.schema,
                store.schema,
                ("part 0", f"part {number} of the store"),
                lambda field: (field.layout, field.classes),
                objects.symmetric_difference(store.objects),
            )
            self.schema = replace(
                self.schema,
                fields=tuple(
                    replace(field, has_nan=field.has_nan or store.schema[field.name].has_nan)
                    for field in self.schema
                ),
                molecules=self.schema.molecules and store.schema.molecules,
            )
            for name, array in _arrays_of(store).items():
                arrays.setdefault(name, []).append((array.dtype, array.shape))
            sizes.append(store.narrow_sizes)
            begin = starts[-1]
            splits.append({k: np.asarray(v, np.int64) + begin for k, v in store.splits.items()})
            starts.append(begin + len(store))
        self.starts: IntArray = np.array(starts, np.int64)
        self.sizes: Array = np.concatenate(sizes)
        self.splits: dict[str, IntArray] = {
            name: np.concatenate([each[name] for each in splits])
            for name in splits[0]
            if all(name in each for each in splits)
        }
        totals = self.sizes.sum(axis=0, dtype=np.int64).tolist()
        levels = ("node", "edge", *(axis.name for axis in self.schema.axes))
        rows_on = dict(zip(levels, totals, strict=True))
        self._dtypes: dict[str, set[np.dtype]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, forms in arrays.items():
            rows = sum(shape[0] for _, shape in forms)
            self._dtypes[name] = {dtype for dtype, shape in forms if shape[0] or not rows}
            if rows and name.startswith(CONTINUED):
                rows -= len(parts) - 1
            elif rows and (level := _level_of_origin(name)) is not None:
                rows = rows_on[level]
            if rows or not name.startswith("origins."):  # empty: all edges were sorted
                self.shapes[name] = (rows, *forms[-1][1][1:])
        if self.shapes["row_ptr"][0]:
            self._dtypes["row_ptr"] = {np.dtype(pointer_dtype(rows_on["edge"]))}
        self.widest: dict[str, np.dtype] = {
            name: _common(self._dtypes[name]) for name in self.shapes
        }

    def dtype(self, name: str) -> np.dtype:
        """Returns the smallest dtype that holds every part's values."""
        dtypes = self._dtypes[name]
        int16 = np.dtype(np.int16)
        if {int16, np.dtype(np.uint16)} <= dtypes:
            arrays = (_arrays_of(part())[name] for part in self._parts)
            if not any(a.dtype == int16 and len(a) and a.min() < 0 for a in arrays):
                dtypes = dtypes - {int16}
        return _common(dtypes)

    def pieces(self, name: str) -> Iterator[Array]:
        """Yields what each part adds to an array."""
        base, begun = 0, False
        level = _level_of_origin(name) if self.shapes[name][0] else None
        for part in self._parts:
            arrays = _arrays_of(part())
            piece = arrays[name]
            if name.startswith(CONTINUED) and len(piece):
                piece = piece[int(begun) :].astype(np.int64) + base
                base, begun = int(piece[-1]) if len(piece) else base, True
            elif level is not None and not len(piece):  # edges that were sorted already
                offsets = arrays[offsets_name(level)]
                piece = local_positions(np.arange(int(offsets[-1])), offsets)
            yield piece

    def read(self, name: str) -> Array:
        """Returns an array over all parts, in main memory."""
        return np.concatenate(list(self.pieces(name)), dtype=self.dtype(name), casting="unsafe")

    def mapping(self, kind: str) -> OnAccess[Array]:
        """Returns the arrays ``kind.name`` over all parts, by name, each read on access."""
        prefix = f"{kind}."
        keys = [name.removeprefix(prefix) for name in self.shapes if name.startswith(prefix)]
        return OnAccess(keys, lambda key: self.read(prefix + key))


def gathered(
    parts: Sequence[tuple[GraphColumns, range | IntArray]],
    dtypes: Mapping[str, Any],
    without: tuple[str, ...] = ("object",),
) -> dict[str, Array]:
    """Returns copies of the arrays of some graphs by name, as a store of them alone would have.

    Args:
        parts: stores in one folder, or in memory, at least one; and of each the graphs, ``[g]``
            int64 or a range.
        dtypes: of the arrays by name; int64 of those that are not named.
        without: what the names of unwanted arrays begin with; splits never are wanted.
    """
    # As plain arrays: indexing those that are memory-mapped takes several times as long.
    sources = [
        {
            name: np.asarray(array)
            for name, array in _arrays_of(store).items()
            if not name.startswith(without)
        }
        for store, _ in parts
    ]
    chosen = [np.add.outer([0, 1], np.asarray(graphs, np.int64)) for _, graphs in parts]
    ends = np.cumsum([0, *(each.shape[1] for each in chosen)])

    @cache
    def places(offsets: str, each: int) -> tuple[IntArray, IntArray, IntArray]:
        """Returns rows by the name of their offsets; where each graph's began, and begin here."""
        bounds = [
            source[offsets][graphs] if offsets in source else graphs
            for source, graphs in zip(sources, chosen, strict=True)
        ]
        first, last = np.concatenate(bounds, axis=1) * each
        here = np.concatenate([[0], np.cumsum(last - first)])
        return np.arange(here[-1]) + np.repeat(first - here[:-1], np.diff(here)), first, here

    def copied(name: str, dtype: Any) -> Array:
        """Returns the rows of these graphs of an array."""
        kind, _, key = name.partition(".")
        level, each = level_of(name, schema)
        offsets = f"object_ends.{key}" if kind == "objects" else offsets_name(level)
        rows, _, here = places(offsets, each)
        arrays = [source[name] for source in sources]
        shape = next(array.shape[1:] for array in arrays if len(array))
        target = np.empty((len(rows), *shape), dtype)
        bounds = here[ends].tolist()
        for array, begin, end in zip(arrays, bounds[:-1], bounds[1:], strict=True):
            if len(array):
                target[begin:end] = array[rows[begin:end]]
            elif begin < end:  # edges that were sorted already are in their own order
                target[begin:end] = local_positions(np.arange(here[-1]), here)[begin:end]
        return target

    schema = parts[0][0].schema
    arrays: dict[str, Array] = {}
    for name in sources[0]:
        dtype = dtypes.get(name, np.int64)
        if name.startswith(OFFSETS):
            arrays[name] = places(name, 1)[2]
        elif not any(len(source[name]) for source in sources):
            arrays[name] = sources[0][name].astype(dtype)
        elif name == "row_ptr":
            nodes, (_, first, edges) = places("node_offsets", 1)[2], places("edge_offsets", 1)
            pointers = copied(name, np.int64)
            pointers -= np.repeat(first - edges[:-1], np.diff(nodes))
            arrays[name] = np.append(pointers, edges[-1]).astype(dtype)
        else:
            arrays[name] = copied(name, dtype)
    return arrays


def slices(
    store: GraphColumns, graphs: int, first: int = 0, last: int | None = None
) -> Iterator[GraphColumns]:
    """Yields graphs ``first`` to ``last - 1`` in runs of at most ``graphs``.

    Each run is checked against its checksums first, copied, and not widened. For a store in shards,
    no run crosses the end of a shard.
    """
    last = len(store) if last is None else last
    for begin, part in store._opened(first, last):
        end = min(last - begin, len(part))
        for start in range(max(first - begin, 0), end, graphs):
            run = range(start, min(start + graphs, end))
            part.verify(np.asarray(run))
            dtypes = {name: array.dtype for name, array in part.arrays().items()}
            arrays = gathered([(part, run)], dtypes, ())
            yield assembled(GraphColumns, part.schema, arrays, name=part.name)


def read_ahead(store: GraphColumns, first: int, last: int) -> int:
    """Requests the rows of graphs ``first`` to ``last - 1``.

    Returns:
        The number of bytes requested; 0 for a store in main memory.
    """
    requested = 0
    for begin, part in store._opened(first, last):
        here, arrays = (max(first - begin, 0), min(last - begin, len(part))), part.arrays()
        requested += sum(
            _advise(array, rows_of(name, part.schema, arrays, *here))
            for name, array in arrays.items()
            if by_block(name)
        )
    return requested


def _advise(array: Array, rows: slice) -> int:
    if not isinstance(array, np.memmap) or rows.stop <= rows.start:
        return 0
    mapping = array._mmap  # type: ignore[attr-defined]  # NumPy's mapping has no public name
    if mapping is None:  # an unpickled array is in memory
        return 0
    row_bytes = array.nbytes // len(array)
    begin = array.offset % mmap.ALLOCATIONGRANULARITY + rows.start * row_bytes
    length = (rows.stop - rows.start) * row_bytes
    page = begin // mmap.PAGESIZE * mmap.PAGESIZE
    mapping.madvise(mmap.MADV_WILLNEED, page, begin + length - page)
    return length


def _arrays_of(store: GraphColumns) -> dict[str, Array]:
    """Returns the arrays that are concatenated; origins of sorted edges are empty."""
    arrays = {k: v for k, v in store.arrays().items() if not k.startswith("split.")}
    for axis in store.schema.edge_axes:
        arrays.setdefault(f"origins.{axis.name}", NONE)
    return arrays


def _level_of_origin(name: str) -> str | None:
    """Returns the level of edges whose original positions an array holds, else None."""
    kind, _, axis = name.partition(".")
    return "edge" if name == "edge_origin" else axis if kind == "origins" else None


def _common(dtypes: set[np.dtype]) -> np.dtype:
    """Returns a dtype that holds them all.

    If one part needs uint64, the narrower signed columns of other parts belong to the same uint64
    field; NumPy's promotion to float64 would round them.
    """
    return np.dtype(np.uint64) if np.dtype(np.uint64) in dtypes else np.result_type(*dtypes)


def require_same_fields(
    first: Schema,
    other: Schema,
    names: tuple[str, str],
    meaning: Callable[[Field], object],
    objects: Iterable[str],
) -> None:
    """Checks that two schemas have the same fields and axes, and agree on the order of edges.

    ``meaning`` returns what must be equal of a field; ``names`` say for messages what has them;
    ``objects`` are those that only one of the two has on the host.

    Raises:
        BadGraph: if they differ; the message names a field.
    """
    if first.keep_order is not other.keep_order:
        ordered, lost = names if first.keep_order else names[::-1]
        raise BadGraph(
            f"the order of edges is kept in {ordered} and not in {lost}: give keep_order=True for "
            "all, or for none"
        )
    differing = [f"{name!r} has values on the host in one alone" for name in sorted(objects)]
    ours, theirs = ({field.name: field for field in each} for each in (first, other))
    for name in sorted({*ours, *theirs}):
        pair = ours.get(name), theirs.get(name)
        was, now = ("missing" if field is None else field.describe() for field in pair)
        if None in pair or meaning(ours[name]) != meaning(theirs[name]):
            differing.append(f"{name!r} is {now}, was {was}")
    if differing or first.components != other.components:
        raise BadGraph(
            f"other fields in {names[1]} than in {names[0]}: "
            f"{'; '.join(differing) or 'other axes'}; give every graph the same fields, or leave "
            "one out with exclude=[...]"
        )
