"""The folders (shards) of one store: those of a writer's parts, and the list of a store in shards.

A shard is a complete store, with its own manifest and checksums. What is known of all shards is
read from their manifests and offsets (:class:`staticgraph.store.joined_parts.Survey`); a list
(``manifest.json`` with format :data:`FORMAT`) only names them, with the digest of each manifest and
the splits of the whole. Invariant: a shard is the one that was listed, or it is rejected with an
error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.files import document
from staticgraph.files.atomic import sync
from staticgraph.files.checksum import crc32_of_array, read_array, require_written
from staticgraph.files.folder import Kind
from staticgraph.store import MANIFEST, files
from staticgraph.store.columns import Array, checked_splits
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.how_many import how_many

FORMAT = "staticgraph.shards"
VERSION = 1
LIST = Kind("store in shards", FORMAT, MANIFEST, lambda manifest: manifest["files"])
REMEDY = "copy it again from where it is whole, or write it again"
# The folder of a part: the number of its shard, and its number in the shard.
PART = re.compile(r"(\d{5})-(\d{7})")


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
    def find(cls, place: Path | Sequence[Path]) -> Shards | None:
        """Returns the shards at a path; None if it holds a single store, or nothing.

        Args:
            place: a folder with a list, a writer's ``.parts`` folder, or a sequence of store
                folders.

        Raises:
            StoreCorrupt: if the list is not what was written.
            BadGraph: if the sequence is empty, or a shard of a writer is missing.
        """
        if not isinstance(place, Path):
            if not place:
                raise BadGraph("no shard was given; a store needs at least one")
            return cls(tuple(place), "shards")
        if LIST.is_that_of(place):
            return _read_list(place / MANIFEST)
        if place.suffix == ".parts" and not (place / MANIFEST).is_file():
            return cls.of_parts(place, place.stem)
        return None

    @classmethod
    def of_parts(cls, folder: Path, name: str, count: int | None = None) -> Shards | None:
        """Returns the parts that the writers of all shards committed; None if there are none.

        Args:
            folder: the folder of the parts.
            name: the store's name in messages.
            count: the number of shards that were written; None if the last one that is there is
                last.

        Raises:
            BadGraph: a shard has no part, or there are more shards than were written.
        """
        if not (parts := parts_in(folder)):
            return None
        present = {shard for shard, _ in parts}
        expected = set(range(max(present) + 1 if count is None else count))
        if differing := sorted(present ^ expected):
            numbers = ", ".join(map(str, differing))
            why = f"shard {numbers} {'is missing' if expected - present else 'was not expected'}"
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
    manifests = {part.name: files.read_manifest(part) for part in parts_in(folder).values()}
    shards = [
        {"folder": part, "graphs": manifest["graphs"], "digest": document.digest(manifest)}
        for part, manifest in manifests.items()
    ]
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": store.name,
        "shards": shards,
        "files": described,
    }
    document.save(folder / MANIFEST, manifest)


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
