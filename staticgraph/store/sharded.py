"""Several stores read as one store of all their graphs: a view over folders that exist already.

A shard is a complete store, with its own manifest and checksums: a part of a writer, or any other.
A list (``manifest.json`` with format :data:`FORMAT`) only names shards, with the digest of each
manifest and the splits of the whole. Graph indices continue from shard to shard; the sizes of all
graphs are in memory (4 bytes per molecule); a graph is read from its shard, and a batch is gathered
from the shards of its graphs, array by array. Nothing else is read before it is used. Training
reads a store in one folder faster: :meth:`Sharded.save` writes one.

Invariants: graphs, sizes, histogram, schema, batches and every array equal those of one store of
the same graphs, however they are divided; a shard is the one that was listed, or it is rejected
with an error that names it. An array over all graphs (``store.columns["x"]``) is concatenated in
main memory when it is accessed.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.files import document
from staticgraph.files.atomic import sync
from staticgraph.files.checksum import crc32_of_array, read_array, require_written
from staticgraph.files.folder import Kind, repair
from staticgraph.schema import POINTERS
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store import MANIFEST, files
from staticgraph.store.columns import Array, Splits, checked_splits
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.joined_parts import NONE, Survey, gathered
from staticgraph.store.objects import ObjectColumn, OnAccess
from staticgraph.store.structure import STRUCTURE
from staticgraph.text.how_many import how_many

FORMAT = "staticgraph.shards"
VERSION = 1
LIST = Kind("store in shards", FORMAT, MANIFEST, lambda manifest: manifest["files"])
REMEDY = "copy it again from where it is whole, or write it again"
# Files beside the parts: the writer of a shard has not ended, or ended without graphs.
UNFINISHED, EMPTY = ".unfinished", ".empty"
# The folder of a part: the number of its shard, and its number in the shard.
PART = re.compile(r"(\d{5})-(\d{7})")
# File descriptors left for everything else; each array of an open shard holds one.
SPARE_DESCRIPTORS = 256


@dataclass(frozen=True)
class Shards:
    """The folders of a store in shards.

    Attributes:
        folders: one store each, in order.
        name: the store's name in messages.
        digests: the digests of the manifests that were listed, by the number of the shard; those of
            shards that no list names are added when they are first opened.
        splits: named lists of graph indices over all shards; None for those that all shards have.
    """

    folders: tuple[Path, ...]
    name: str
    digests: dict[int, str] = field(default_factory=dict)
    splits: Mapping[str, Array] | None = None

    @classmethod
    def find(cls, place: Path) -> Shards | None:
        """Returns the shards in a folder with a list, or in a writer's ``.parts``; else None.

        Raises:
            StoreCorrupt: if the list is not what was written.
            BadGraph: if a shard of a writer is missing.
        """
        if LIST.is_that_of(place):
            return _read_list(place / MANIFEST)
        if place.suffix == ".parts" and not (place / MANIFEST).is_file():
            return cls.of_parts(place, place.stem)
        return None

    @classmethod
    def of_parts(cls, folder: Path, name: str, count: int | None = None) -> Shards | None:
        """Returns the parts that the writers of all shards committed; None if there are none.

        ``count`` shards were written; None if the last one that is there is last.

        Raises:
            BadGraph: a shard has no part and did not end without graphs, or there are more shards
                than were written.
        """
        if not (parts := parts_in(folder)):
            return None
        present = {shard for shard, _ in parts}
        expected = set(range(max(present) + 1 if count is None else count))
        missing = expected - present - {int(path.stem) for path in folder.glob(f"*{EMPTY}")}
        if differing := sorted(missing | (present - expected)):
            numbers = ", ".join(map(str, differing))
            why = f"shard {numbers} {'is missing' if missing else 'was not expected'}"
            raise BadGraph(
                f"{folder} has parts of {how_many(len(present), 'shard')}, of {len(expected)}: "
                f"{why}. Write it with StoreWriter(..., shard={differing[0]}); or read what is "
                "there, as a list of folders: GraphStore.load(sorted(parts.glob('*-*')))"
            )
        return cls(tuple(parts.values()), name)


def write_list(folder: Path, store: GraphColumns) -> None:
    """Adds a store's splits and, last, a list of its shards to the folder that holds them."""
    described = {}
    for split, ids in store.splits.items():
        path = folder / files.file_of(f"split.{split}")
        np.save(path, ids, allow_pickle=False)
        sync(path)
        described[f"split.{split}"] = {
            "crc32": crc32_of_array(ids),
            "dtype": ids.dtype.str,
            "shape": list(ids.shape),
        }
    shards = []
    for part in parts_in(folder).values():
        manifest = files.read_manifest(part)
        digest = document.digest(manifest)
        shards.append({"folder": part.name, "graphs": manifest["graphs"], "digest": digest})
    values = {"name": store.name, "shards": shards, "files": described}
    document.save(folder / MANIFEST, {"format": FORMAT, "version": VERSION, **values})


def _read_list(path: Path) -> Shards:
    def build(values: dict[str, Any]) -> Shards:
        """Builds the list from the values of a manifest."""
        names = [shard["folder"] for shard in values["shards"]]
        if odd := [name for name in names if not PART.fullmatch(name)]:
            raise StoreCorrupt(f"{path} lists {odd[0]!r}, which is not a shard's name")
        splits = {
            name.removeprefix("split."): _read_array(path.parent, name, file)
            for name, file in values["files"].items()
        }
        graphs = sum(int(shard["graphs"]) for shard in values["shards"])
        return Shards(
            tuple(path.parent / name for name in names),
            str(values["name"]),
            {number: str(shard["digest"]) for number, shard in enumerate(values["shards"])},
            checked_splits(splits, graphs, str(path.parent)),
        )

    return document.read_document(
        path, "a list of shards", build, StoreCorrupt, form=(FORMAT, (VERSION,))
    )


def _read_array(root: Path, name: str, file: Mapping[str, Any]) -> Array:
    path = root / files.file_of(name)
    array = read_array(path, REMEDY)
    if array.dtype.str != file["dtype"] or list(array.shape) != file["shape"]:
        raise StoreCorrupt(f"{path} is {array.dtype} of shape {list(array.shape)}; {REMEDY}")
    require_written(crc32_of_array(array), file["crc32"], f"{path}", REMEDY)
    return array


def parts_in(folder: Path) -> dict[tuple[int, int], Path]:
    """Returns the parts that a writer committed, by shard and number in the shard, ascending.

    Raises:
        BadGraph: if a part is missing between others.
    """
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    names = ((PART.fullmatch(path.name), path) for path in paths)
    parts = {(int(name[1]), int(name[2])): path for name, path in names if name}
    for shard, number in parts:
        if number and (shard, number - 1) not in parts:
            raise BadGraph(
                f"{folder} lacks part {number - 1} of shard {shard}, of which there are "
                "later ones: remove the folder and write the store again"
            )
    return parts


class Sharded(GraphColumns):
    """The methods that a store in shards overrides.

    Args:
        shards: the folders.
        verify, by_rank: as for :meth:`GraphStore.load`.

    Raises:
        BadGraph: if a shard's fields differ from those of the first.
        StoreCorrupt: if a shard is damaged, missing, or not the one that was listed.
    """

    shards: Shards

    def __init__(
        self, shards: Shards, *, verify: bool | None = None, by_rank: bool = False
    ) -> None:
        # A store in one folder has its arrays as attributes; here they are built on access.
        paths = [path for folder in shards.folders if folder.is_dir() for path in folder.iterdir()]
        nbytes = sum(path.stat().st_size for path in paths)
        whole = verify or (verify is None and nbytes <= files.WHOLE_BYTES)
        self.__dict__.update(
            shards=shards,
            by_rank=by_rank,
            name=shards.name,
            checks=None,
            _nbytes=nbytes,
            _unchecked=set(range(len(shards.folders))) if whole else set(),
        )
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most_open = (descriptors - SPARE_DESCRIPTORS) // max(1, len(paths) // len(shards.folders))
        # The most recently used shards stay open.
        self.__dict__["_open"] = lru_cache(max(4, most_open))(self._load)
        survey = Survey([partial(self._open, number) for number in range(len(shards.folders))])
        self.__dict__.update(
            _survey=survey,
            _starts=survey.starts,
            schema=survey.schema,
            splits=Splits(survey.splits if shards.splits is None else shards.splits),
            narrow_sizes=survey.sizes,
            columns=survey.mapping("column"),
            offsets=survey.mapping("offsets"),
            origins=survey.mapping("origins"),
            objects=OnAccess(
                survey.mapping("objects"),
                lambda key: ObjectColumn(
                    survey.read(f"objects.{key}"), survey.read(f"object_ends.{key}")
                ),
            ),
        )

    def __getattr__(self, name: str) -> Any:
        """Builds an array over all graphs on access."""
        if name not in STRUCTURE:  # a copy asks before it has any attribute
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._survey.read(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the folders, not what is read from them: another process opens them again."""
        shards = replace(self.shards, splits=dict(self.splits))
        return partial(type(self), verify=False, by_rank=self.by_rank), (shards,)

    # ------------------------------------------------------------------ the shards

    def _load(self, number: int) -> GraphColumns:
        """Opens a shard, its columns mapped; the first time, checks every byte if that was asked.

        Raises:
            StoreCorrupt: if it is damaged or missing, or was exchanged for another since it was
                listed, or first opened.
        """
        folder, digests = self.shards.folders[number], self.shards.digests
        name = f"shard {number} of the {len(self.shards.folders)} of {self.name}"
        try:
            repair(folder)
            if number in digests and not folder.is_dir():
                raise StoreCorrupt(f"{folder} is not here")
            manifest = files.read_manifest(folder)
            digest = document.digest(manifest)
            if digests.setdefault(number, digest) != digest:
                raise StoreCorrupt(f"{folder} is not the store that was listed")
            store = files.load(GraphColumns, folder, manifest, verify=number in self._unchecked)
        except StoreCorrupt as error:
            raise StoreCorrupt(f"{name}: {error}. The others are as they were: {REMEDY}") from None
        self._unchecked.discard(number)
        if store.checks is not None:
            store.checks.name = f"{name}: {folder}"
        return store

    def _by_part(self, ids: IntArray) -> tuple[Iterable[tuple[GraphColumns, IntArray]], IntArray]:
        """See :meth:`GraphColumns._by_part`."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"graph {ids[(ids < 0) | (ids >= len(self))][0]} of {len(self)}")
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        places = np.argsort(owners, kind="stable")
        local = (ids - self._starts[owners])[places]
        numbers, firsts = np.unique(owners[places], return_index=True)
        parts = np.split(local, firsts[1:]) if len(ids) else []
        return zip(map(self._open, numbers.tolist()), parts, strict=True), places

    def held(self, ids: IntArray, pointers: bool = True) -> tuple[GraphColumns, IntArray]:
        """See :meth:`GraphColumns.held`: copies the graphs into one store, shard by shard."""
        opened, places = self._by_part(ids)
        parts = list(opened) or [(GraphColumns.zeros(self.schema), ids)]
        for part, chosen in parts:
            part.verify(chosen)
        edges = self.narrow_sizes[ids, 1].sum(dtype=np.int64)
        dtypes = {**self._survey.widest, "row_ptr": pointer_dtype(edges)}
        arrays = dict.fromkeys(STRUCTURE, NONE) | gathered(
            parts,
            dtypes,
            ("edge_origin", "origins.", "object", *(() if pointers else POINTERS)),
        )
        positions = np.empty_like(places)
        positions[places] = np.arange(len(places))
        return assembled(GraphColumns, self.schema, arrays), positions

    def __len__(self) -> int:
        return int(self._starts[-1])

    def in_first_order(self) -> Self:
        """See :meth:`GraphColumns.in_first_order`.

        Raises:
            ValueError: edges are sorted; a store in shards is written again instead.
        """
        if self.schema.keep_order:
            return self
        raise ValueError(
            f"{self.name} is in shards, with edges sorted by destination: write it again with "
            "StoreWriter(folder, keep_order=True).extend(store), or staticgraph convert "
            "--keep-order"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the files of all shards."""
        return self._nbytes
