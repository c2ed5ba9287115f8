"""Concatenates several stores into one store on disk, with the memory needed for one of them.

Arrays of features, edges and permutations are concatenated; offsets and row pointers continue from
part to part. Each part keeps an array in the narrowest dtype for its own values; it is widened to
the dtype that all parts need. Invariant: the folder is what ``GraphStore.from_pyg`` of all graphs
would have saved, array by array, and it appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

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
    own = checked_splits(splits or {}, survey.graphs, name)
    with replacing(folder, files.KIND, overwrite) as scratch:
        arrays: dict[str, Array] = {}
        for key in survey.names:
            arrays[key] = _written(scratch, key, survey.dtype(key), survey.pieces(key))
        for key, split in own.items():
            arrays[f"split.{key}"] = split
            np.save(scratch / files.file_of(f"split.{key}"), split, allow_pickle=False)
        counted = ["node_offsets", "edge_offsets", *(n for n in arrays if n.startswith(OFFSETS))]
        sizes = np.stack([np.diff(arrays[key]) for key in counted], axis=1)
        histogram = SizeHistogram.from_sizes(sizes, survey.schema.components)
        files.seal(scratch, survey.schema, name, histogram.digest, arrays)


OFFSETS = "offsets."
# Offsets, one more entry than rows: these continue from part to part.
_COUNTED_ON = ("node_offsets", "edge_offsets", "row_ptr", OFFSETS, "object_ends.")


class Survey:
    """The schema, length and dtypes of the concatenation of several parts.

    Args:
        parts: the parts in order; at least one.

    Attributes:
        graphs: the number of graphs in all parts.
        schema: the schema of all parts.
        names: the names of all arrays except splits.

    Raises:
        BadGraph: if a part's fields or host objects differ from those of the first.
    """

    graphs: int

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._dtypes: dict[str, set[np.dtype]] = {}
        self._lengths: dict[str, int] = {}
        self.graphs = edges = 0
        schema: Schema | None = None
        kept: list[str] | None = None
        for number, part in enumerate(parts):
            store = part()
            schema = store.schema if schema is None else _joined(schema, store.schema, number)
            kept = sorted(store.objects) if kept is None else kept
            if kept != sorted(store.objects):
                raise BadGraph(
                    f"part {number} of the store has the objects {sorted(store.objects)} on the "
                    f"host, part 0 has {kept}: give every graph the same fields, or leave "
                    "one out with exclude=[...]"
                )
            self.graphs += len(store)
            edges += int(store.edge_offsets[-1])
            for name, array in self._arrays(store).items():
                self._lengths[name] = self._lengths.get(name, 0) + len(array)
                if len(array) or name not in self._dtypes:
                    self._dtypes.setdefault(name, set()).add(array.dtype)
                    if len(array) and self._lengths[name] == len(array):
                        self._dtypes[name] = {array.dtype}  # those before were empty
        assert schema is not None, "a store needs at least one graph"
        self.schema = schema
        self.names: list[str] = [
            name
            for name in self._dtypes
            if self._lengths[name] or not name.startswith("origins.")  # empty: all were sorted
        ]
        if self._lengths["row_ptr"]:
            self._dtypes["row_ptr"] = {np.dtype(pointer_dtype(edges))}

    def _arrays(self, store: GraphColumns) -> dict[str, Array]:
        found = {k: v for k, v in store.arrays().items() if not k.startswith("split.")}
        for axis in store.schema.edge_axes:
            found.setdefault(f"origins.{axis.name}", np.empty(0, np.uint8))
        return found

    def widest(self, name: str) -> np.dtype:
        """Returns a dtype that holds every part's dtype, without reading values."""
        return _common(self._dtypes[name])

    def dtype(self, name: str) -> np.dtype:
        """Returns the smallest dtype that holds every part's values."""
        dtypes = self._dtypes[name]
        if {np.dtype(np.int16), np.dtype(np.uint16)} <= dtypes and not self._negative(name):
            dtypes = dtypes - {np.dtype(np.int16)}
        return _common(dtypes)

    def _negative(self, name: str) -> bool:
        return any(
            array.dtype == np.int16 and len(array) and array.min() < 0
            for part in self._parts
            for array in [self._arrays(part())[name]]
        )

    def pieces(self, name: str) -> Iterator[Array]:
        """Yields the concatenated array, one part at a time."""
        base, last = 0, len(self._parts) - 1
        origin = name == "edge_origin" or name.startswith("origins.")
        for number, part in enumerate(self._parts):
            store = part()
            array = self._arrays(store)[name]
            if name.startswith(_COUNTED_ON):
                if not len(array):
                    continue  # heterogeneous data has no row pointers
                step = int(array[-1])
                counted = array.astype(np.int64) + base
                yield counted if number == last else counted[:-1]
                base += step
            elif origin and not len(array) and self._lengths[name]:
                level = "edge" if name == "edge_origin" else name.partition(".")[2]
                offsets = store.offsets_of(level)
                rows = np.arange(int(offsets[-1]))
                yield rows - np.repeat(np.asarray(offsets)[:-1], np.diff(offsets))
            else:
                yield array


def _common(dtypes: set[np.dtype]) -> np.dtype:
    """Returns a dtype that holds them all.

    If one part needs uint64, the narrower signed columns of other parts belong to the same uint64
    field; NumPy's promotion to float64 would round them.
    """
    return np.dtype(np.uint64) if np.dtype(np.uint64) in dtypes else np.result_type(*dtypes)


def _joined(first: Schema, other: Schema, number: int) -> Schema:
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
        said = [_said(name, ours.get(name), theirs.get(name)) for name in differing]
        raise BadGraph(
            f"part {number} of the store has other fields than part 0: "
            f"{'; '.join(said) or 'other axes'}; give every graph the same fields, or leave one "
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


def _said(name: str, ours: Field | None, theirs: Field | None) -> str:
    forms = ["nothing" if field is None else field.describe() for field in (theirs, ours)]
    return f"{name!r} is {forms[0]}, was {forms[1]}"


def _written(scratch: Path, name: str, dtype: np.dtype, pieces: Iterator[Array]) -> Array:
    """Writes all pieces to an ``.npy`` file, whose length is known only at the end, and maps it."""
    path = scratch / files.file_of(name)
    rows, shape = 0, ()
    with path.open("w+b") as file:
        begin = _head(file, dtype, (0,))
        for piece in pieces:
            if not rows:
                shape = piece.shape[1:]
                begin = _head(file, dtype, (0, *shape))
            rows += len(piece)
            np.ascontiguousarray(piece, dtype=dtype).tofile(file)
        # NumPy leaves room in the header for a growing first dimension.
        assert _head(file, dtype, (rows, *shape)) == begin, "the header has outgrown its place"
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _head(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Writes the header at the start of the file and returns where it ends."""
    file.seek(0)
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()
