"""The folders (shards) that make up one store: their list, and opening them.

A shard is a complete store, with its own manifest and checksums. The list comes from a sequence of
folders, from the parts of an unfinished writer, or from a folder with a list of its own
(``manifest.json`` with format :data:`FORMAT`), which also holds the sizes of all graphs, so that it
opens at once. Invariant: a shard is complete and is the one that was listed, or it is rejected with
an error that names it.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.files import document
from staticgraph.files.atomic import sync
from staticgraph.files.checksum import crc32_of_array
from staticgraph.files.document import NOT_THERE
from staticgraph.files.folder import repair
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store import files
from staticgraph.store.columns import Array, checked_splits
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.parts import Survey
from staticgraph.text.how_many import how_many

FORMAT = "staticgraph.shards"
VERSION = 1
SIZES = "sizes"
REMEDY = "copy it again from where it is whole, or write it again"
# The folder of a part: the number of its shard, and its number in the shard.
PART = re.compile(r"(\d{5})-(\d{7})")
# File descriptors left for everything else; each array of an open shard holds one.
SPARE_DESCRIPTORS = 256


class Shard(NamedTuple):
    """One shard: a folder with a store, which may be missing on this machine.

    Attributes:
        folder: its path.
        graphs: the number of graphs in it.
        nbytes: the bytes of all of its files except the manifest.
        digest: the digest of its manifest.
    """

    folder: Path
    graphs: int
    nbytes: int
    digest: str


@dataclass(frozen=True, eq=False)
class ShardList:
    """What is known about all shards without opening any of them.

    Attributes:
        shards: the shards in order.
        schema: the schema of all graphs.
        name: the store's name in messages.
        sizes: ``[n, C]`` in a narrow dtype: nodes, edges and the rows of each axis.
        dtypes: for each array, a dtype that holds the values of every shard.
        objects: the names of the host objects.
        splits: named lists of graph indices over all shards.
    """

    shards: tuple[Shard, ...]
    schema: Schema
    name: str
    sizes: Array
    dtypes: Mapping[str, np.dtype]
    objects: tuple[str, ...]
    splits: Mapping[str, IntArray]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards on disk, without their manifests."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def most_open(self) -> int:
        """How many shards may be open at once, each array of which holds a file descriptor."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(4, (descriptors - SPARE_DESCRIPTORS) // max(1, len(self.dtypes)))

    def load(self, number: int, verify: bool = False) -> GraphColumns:
        """Opens a shard, its columns mapped; if ``verify``, checks every byte of it now.

        Raises:
            StoreCorrupt: if it is not what was listed, or not on this machine.
        """
        shard = self.shards[number]
        with self.naming(number):
            try:
                if document.digest(files.read_manifest(shard.folder)) != shard.digest:
                    raise StoreCorrupt(f"{shard.folder} is not the store that was listed")
                store = files.load(GraphColumns, shard.folder, verify=verify)
            except FileNotFoundError:
                raise StoreCorrupt(f"{shard.folder} is not here") from None
            if (len(store), _layout(store.schema)) != (shard.graphs, _layout(self.schema)):
                raise StoreCorrupt(f"{shard.folder} has other graphs or fields than were listed")
        return store

    @contextmanager
    def naming(self, number: int) -> Iterator[None]:
        """Raises a StoreCorrupt of the block again, with the number of the shard."""
        try:
            yield
        except StoreCorrupt as error:
            raise StoreCorrupt(
                f"shard {number} of the {len(self.shards)} of {self.name}: {error}. The others are "
                f"as they were: {REMEDY}"
            ) from None

    def check_lengths(self, absent: bool) -> None:
        """Compares the bytes of each shard with the list, to find truncation at once.

        Args:
            absent: whether shards may be missing on this machine.

        Raises:
            StoreCorrupt: if they differ, or a shard is missing; the message names the shard, and
                the file if known.
        """
        for number, shard in enumerate(self.shards):
            repair(shard.folder)
            if shard.folder.is_dir():
                with os.scandir(shard.folder) as entries:
                    nbytes = sum(e.stat().st_size for e in entries if e.name != files.MANIFEST)
                if nbytes == shard.nbytes:
                    continue
                self.load(number)  # raises with the file's name, if one of the store's is wrong
                damage = f"has {how_many(nbytes, 'byte')}, listed are {shard.nbytes}"
            elif absent:
                continue
            else:
                damage = (
                    "is not here (where each host has only its ranks' shards, load with "
                    "shards='by-rank')"
                )
            with self.naming(number):
                raise StoreCorrupt(f"{shard.folder} {damage}")

    def save(self, folder: Path, splits: Mapping[str, Array]) -> None:
        """Adds the list to the folder that holds the shards: sizes, splits and, last, a manifest.

        Raises:
            BadGraph: if a split is neither a list of existing graphs nor a mask.
        """
        arrays: dict[str, Array] = {SIZES: self.sizes}
        for name, split in checked_splits(splits, len(self.sizes), self.name).items():
            arrays[f"split.{name}"] = split
        described = {}
        for name, array in arrays.items():
            path = folder / files.file_of(name)
            np.save(path, array, allow_pickle=False)
            sync(path)
            described[name] = {
                "crc32": crc32_of_array(array),
                "dtype": array.dtype.str,
                "shape": list(array.shape),
            }
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "schema": self.schema.to_dict(),
            "dtypes": {name: dtype.str for name, dtype in self.dtypes.items()},
            "objects": list(self.objects),
            "shards": [
                {"folder": folder.name, "graphs": graphs, "bytes": nbytes, "digest": digest}
                for folder, graphs, nbytes, digest in self.shards
            ],
            "files": described,
        }
        document.save(folder / files.MANIFEST, manifest)


def list_shards(place: Path | Sequence[Path]) -> ShardList | None:
    """Returns the shards at a path; None if it holds a single store, or nothing.

    Args:
        place: a folder with a list, a writer's ``.parts`` folder, or a sequence of store folders.

    Raises:
        StoreCorrupt: if the list is not what was written.
        BadGraph: if a shard's fields differ from those of the first, or the sequence is empty.
    """
    if not isinstance(place, Path):
        return survey_shards(list(place), "shards")
    if (place / files.MANIFEST).is_file():
        try:
            manifest = document.read(place / files.MANIFEST)
        except NOT_THERE:
            return None
        is_list = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        return _read_list(place) if is_list else None
    if place.suffix == ".parts" and (paths := parts_in(place)):
        check_shards(place, paths)
        return survey_shards(paths, place.stem)
    return None


def survey_shards(folders: list[Path], name: str) -> ShardList:
    """Builds the list from the folders alone, opening each of them.

    Raises:
        BadGraph: if there is no folder, or a shard's fields differ from those of the first.
        StoreCorrupt: if a shard is damaged.
    """
    if not folders:
        raise BadGraph("no shard was given; a store needs at least one")

    def open_shard(folder: Path) -> GraphColumns:
        """Opens the store in a folder, unverified."""
        repair(folder)
        return files.load(GraphColumns, folder, verify=False)

    survey = Survey([partial(open_shard, folder) for folder in folders])
    shards = []
    for folder in folders:
        manifest = files.read_manifest(folder)
        nbytes = sum(file["bytes"] for file in manifest["files"].values())
        shards.append(Shard(folder, manifest["graphs"], nbytes, document.digest(manifest)))
    return ShardList(
        shards=tuple(shards),
        schema=survey.schema,
        name=name,
        sizes=survey.sizes,
        dtypes={array: survey.widest(array) for array in survey.names},
        objects=tuple(n.partition(".")[2] for n in survey.names if n.startswith("objects.")),
        splits=survey.splits,
    )


def _read_list(root: Path) -> ShardList:
    path = root / files.MANIFEST

    def build(values: dict[str, Any]) -> ShardList:
        """Builds the list from the values of a manifest."""
        if values["version"] != VERSION:
            raise StoreCorrupt(
                f"{path} says version {values['version']}; this library reads {FORMAT} version "
                f"{VERSION}: write the store again"
            )
        arrays = {name: _read_array(root, name, file) for name, file in values["files"].items()}
        shards = []
        for shard in values["shards"]:
            if not PART.fullmatch(shard["folder"]):
                raise StoreCorrupt(f"{path} lists {shard['folder']!r}, which is not a shard's name")
            folder, digest = root / shard["folder"], str(shard["digest"])
            shards.append(Shard(folder, int(shard["graphs"]), int(shard["bytes"]), digest))
        schema, sizes = Schema.from_dict(values["schema"]), arrays.pop(SIZES)
        graphs = sum(shard.graphs for shard in shards)
        if sizes.shape != (graphs, len(schema.components)) or sizes.dtype.kind != "i":
            raise StoreCorrupt(
                f"{path}: {SIZES} has shape {sizes.shape} and dtype {sizes.dtype} for "
                f"{how_many(graphs, 'graph')} of {how_many(len(shards), 'shard')}; write the store "
                "again"
            )
        splits = {name.partition(".")[2]: array for name, array in arrays.items()}
        return ShardList(
            shards=tuple(shards),
            schema=schema,
            name=str(values["name"]),
            sizes=sizes,
            dtypes={name: np.dtype(dtype) for name, dtype in values["dtypes"].items()},
            objects=tuple(map(str, values["objects"])),
            splits=checked_splits(splits, graphs, str(root)),
        )

    return document.read_document(path, "a list of shards", build, StoreCorrupt)


def _read_array(root: Path, name: str, file: Mapping[str, Any]) -> Array:
    path = root / files.file_of(name)
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # the exception depends on the bytes
        raise StoreCorrupt(f"{path} is not an array ({error}); {REMEDY}") from None
    same = array.dtype.str == file["dtype"] and list(array.shape) == file["shape"]
    if not same or crc32_of_array(array) != file["crc32"]:
        raise StoreCorrupt(f"{path} is not what was written (checksum differs); {REMEDY}")
    return array


# ---------------------------------------------------------------------- the parts of a writer


def parts_in(folder: Path) -> list[Path]:
    """Returns the parts that a writer committed, ordered by shard and number.

    Raises:
        BadGraph: if a part is missing between others.
    """
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if PART.fullmatch(path.name))
    numbers: dict[int, list[int]] = {}
    for path in paths:
        repair(path)
        shard, number = numbers_of(path)
        numbers.setdefault(shard, []).append(number)
    for shard, present in numbers.items():
        if absent := sorted(set(range(len(present))) - set(present)):
            raise BadGraph(
                f"{folder} lacks part {absent[0]} of shard {shard}, of which there are "
                "later ones: remove the folder and write the store again"
            )
    return paths


def numbers_of(path: Path) -> tuple[int, int]:
    """Returns the shard and the number of a part."""
    match = PART.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])


def check_shards(folder: Path, paths: Sequence[Path], count: int | None = None) -> None:
    """Checks that a folder of parts has a part of every shard.

    Args:
        folder, paths: the folder and its parts, as in :func:`parts_in`.
        count: the number of shards that were written; None if the last one that is there is last.

    Raises:
        BadGraph: a shard has no part, or there are more shards than were written.
    """
    present = {numbers_of(path)[0] for path in paths}
    expected = set(range(max(present, default=0) + 1 if count is None else count))
    if differing := sorted(present ^ expected):
        numbers = ", ".join(map(str, differing))
        why = f"shard {numbers} {'is missing' if expected - present else 'was not expected'}"
        raise BadGraph(
            f"{folder} has parts of {how_many(len(present), 'shard')}, of {len(expected)}: {why}. "
            f"Write it with StoreWriter(..., shard={differing[0]}); or read what is there, as a "
            "list of folders: GraphStore.load(sorted(parts.glob('*-*')))"
        )


def _layout(schema: Schema) -> tuple[object, object]:
    """Returns the part of a schema that all shards must share."""
    return {field.layout for field in schema}, schema.axes
