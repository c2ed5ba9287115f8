"""Concatenates several stores: schema and dtypes of the whole, and the pieces of each array.

Features, edges and permutations are concatenated; offsets and row pointers continue from part to
part. Each part keeps an array in the narrowest dtype for its own values; it is widened to the dtype
that all parts need. The sizes of all parts are known before a value is read, so :func:`merge`
allocates every array of the final folder and copies each part into its slice of the memory maps.
Invariant: the folder is what ``GraphStore.from_pyg`` of all graphs would have saved, array by
array, and it appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.files.folder import replacing
from staticgraph.schema import Field, Schema
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import pointer_dtype
from staticgraph.store import files
from staticgraph.store.columns import Array, checked_splits
from staticgraph.store.graph_columns import GraphColumns

# Opens one part; called again in each pass, so that only one part is open at a time.
Part = Callable[[], GraphColumns]


def merge(
    parts: Sequence[Part],
    folder: str | Path,
    *,
    name: str = "data",
    splits: Mapping[str, Array] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the concatenation of all parts to ``folder``.

    Args:
        parts: the parts in order; at least one. The caller has checked them against their
            checksums.
        folder: the target folder; created if missing.
        name: the store's name in messages.
        splits: named lists of graph indices over all parts; the parts' own splits are dropped.
        overwrite: replace an existing store.

    Raises:
        BadGraph: if a part's fields differ from those of the first.
        FileExistsError: see :func:`staticgraph.store.files.save`.
    """
    survey = Survey(parts)
    checked = checked_splits(splits or {}, survey.graphs, name)
    with replacing(folder, files.KIND, overwrite) as scratch:
        arrays: dict[str, Array] = {}
        for key in survey.names:
            path, shape = scratch / files.file_of(key), survey.shape(key)
            mapped = np.lib.format.open_memmap(path, "w+", survey.dtype(key), shape)
            survey.fill(mapped, key)
            mapped.flush()
            arrays[key] = mapped
        for key, split in checked.items():
            arrays[f"split.{key}"] = split
            np.save(scratch / files.file_of(f"split.{key}"), split, allow_pickle=False)
        counted = ["node_offsets", "edge_offsets", *(n for n in arrays if n.startswith(OFFSETS))]
        sizes = np.stack([np.diff(arrays[key]) for key in counted], axis=1)
        histogram = SizeHistogram.from_sizes(sizes, survey.schema.components)
        files.seal(scratch, survey.schema, name, histogram.digest, arrays)


NONE: Array = np.empty(0, np.uint8)
OFFSETS = "offsets."
# Arrays with one more entry than rows, whose values continue from part to part.
CONTINUED = ("node_offsets", "edge_offsets", "row_ptr", OFFSETS, "object_ends.")


class Survey:
    """The schema, lengths and dtypes of the concatenation of several parts.

    Args:
        parts: the parts in order; at least one.

    Attributes:
        graphs: the number of graphs in all parts.
        schema: the schema of all parts.
        names: the names of all arrays except splits.

    Raises:
        BadGraph: if a part's fields or host objects differ from those of the first.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._dtypes: dict[str, set[np.dtype]] = {}
        self._lengths: dict[str, int] = {}
        self._row_shapes: dict[str, tuple[int, ...]] = {}
        self.graphs: int = 0
        edges = 0
        schema: Schema | None = None
        objects: list[str] = []
        for number, part in enumerate(parts):
            store = part()
            objects = objects if number else sorted(store.objects)
            schema = store.schema if schema is None else _join_schemas(schema, store.schema, number)
            if objects != sorted(store.objects):
                raise BadGraph(
                    f"part {number} of the store has the objects {sorted(store.objects)} on the "
                    f"host, part 0 has {objects}: give every graph the same fields, or leave "
                    "one out with exclude=[...]"
                )
            self.graphs += len(store)
            edges += int(store.edge_offsets[-1])
            for name, array in _arrays_of(store).items():
                if len(array) and not self._lengths.get(name):
                    self._dtypes[name] = set()  # the arrays before, if any, were empty
                if len(array) or name not in self._dtypes:
                    self._dtypes.setdefault(name, set()).add(array.dtype)
                self._row_shapes[name] = array.shape[1:]
                self._lengths[name] = self._lengths.get(name, 0) + len(array)
        assert schema is not None, "a store needs at least one graph"
        self.schema: Schema = schema
        self.names: list[str] = [
            name
            for name in self._dtypes
            if self._lengths[name] or not name.startswith("origins.")  # empty: all were sorted
        ]
        if self._lengths["row_ptr"]:
            self._dtypes["row_ptr"] = {np.dtype(pointer_dtype(edges))}

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array over all parts."""
        rows = self._lengths[name]
        if name.startswith(CONTINUED) and rows:
            rows -= len(self._parts) - 1
        elif rows and (level := _level_of_origin(name)) is not None:
            rows = sum(int(part().offsets_of(level)[-1]) for part in self._parts)
        return (rows, *self._row_shapes[name])

    def widest(self, name: str) -> np.dtype:
        """Returns a dtype that holds every part's dtype, without reading values."""
        return _common(self._dtypes[name])

    def dtype(self, name: str) -> np.dtype:
        """Returns the smallest dtype that holds every part's values."""
        dtypes = self._dtypes[name]
        int16 = np.dtype(np.int16)
        if {int16, np.dtype(np.uint16)} <= dtypes:
            arrays = (_arrays_of(part())[name] for part in self._parts)
            if not any(a.dtype == int16 and len(a) and a.min() < 0 for a in arrays):
                dtypes = dtypes - {int16}
        return _common(dtypes)

    def fill(self, array: Array, name: str) -> Array:
        """Fills an array of the shape and dtype of a name from all parts, and returns it."""
        first, arrays = 0, (_arrays_of(part()) for part in self._parts)
        for piece in pieces(name, arrays, moved=self._lengths[name] > 0):
            array[first : first + len(piece)] = piece
            first += len(piece)
        return array

    def joined(self, name: str) -> Array:
        """Returns an array over all parts, in main memory."""
        return self.fill(np.empty(self.shape(name), self.dtype(name)), name)


def pieces(name: str, parts: Iterable[Mapping[str, Array]], moved: bool) -> Iterator[Array]:
    """Yields what each part adds to the concatenation of an array.

    Args:
        name: the name of the array.
        parts: the arrays of each part, by name.
        moved: whether the edges of any part were moved; the others then have their own order.
    """
    base, level = 0, _level_of_origin(name) if moved else None
    begun = False
    for arrays in parts:
        piece = arrays.get(name, NONE)
        if name.startswith(CONTINUED) and len(piece):
            piece = piece[int(begun) :].astype(np.int64) + base
            base, begun = int(piece[-1]) if len(piece) else base, True
        elif level is not None and not len(piece):
            offsets = arrays["edge_offsets" if level == "edge" else f"{OFFSETS}{level}"]
            piece = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], np.diff(offsets))
        yield piece


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


def _join_schemas(first: Schema, other: Schema, number: int) -> Schema:
    """Joins two schemas, which must have the same fields.

    Raises:
        BadGraph: if they do not.
    """
    ours, theirs = ({field.name: field for field in each} for each in (first, other))
    axes = [tuple(axis.name for axis in each.axes) for each in (first, other)]
    if first.keep_order is not other.keep_order:
        kept, lost = (0, number) if first.keep_order else (number, 0)
        raise BadGraph(
            f"part {kept} of the store keeps the order of edges, and part {lost} has them sorted: "
            "build both with keep_order=True, or neither"
        )
    differing = sorted(
        name
        for name in {*ours, *theirs}
        if name not in ours or name not in theirs or _meaning(ours[name]) != _meaning(theirs[name])
    )
    if differing or axes[0] != axes[1]:
        fields = [_describe_pair(name, ours.get(name), theirs.get(name)) for name in differing]
        raise BadGraph(
            f"part {number} of the store has other fields than part 0: "
            f"{'; '.join(fields) or 'other axes'}; give every graph the same fields, or leave one "
            "out with exclude=[...]"
        )
    return replace(
        first,
        fields=tuple(
            replace(field, has_nan=field.has_nan or theirs[field.name].has_nan) for field in first
        ),
        molecules=first.molecules and other.molecules,
    )


def _meaning(field: Field) -> tuple[object, ...]:
    """Returns the properties of a field that all parts must share."""
    return *field.layout, field.classes


def _describe_pair(name: str, ours: Field | None, theirs: Field | None) -> str:
    forms = ["nothing" if field is None else field.describe() for field in (theirs, ours)]
    return f"{name!r} is {forms[0]}, was {forms[1]}"
