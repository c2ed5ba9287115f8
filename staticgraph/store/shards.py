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
from staticgraph.files.folder import Kind, repair
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
        finished = (place / MANIFEST).is_file()
        if not finished and place.suffix == ".parts" and (paths := parts_in(place)):
            check_shards(place, paths)
            return cls(tuple(paths), place.stem)
        return None


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
    manifests = {part.name: files.read_manifest(part) for part in parts_in(folder)}
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
        arrays = {name: _read_array(path.parent, name, f) for name, f in values["files"].items()}
        splits = {
            name.partition(".")[2]: array
            for name, array in arrays.items()
            if name.startswith("split.")
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


# ---------------------------------------------------------------------- the parts of a writer


def parts_in(folder: Path) -> list[Path]:
    """Returns the parts that a writer committed, ordered by shard and number.

    Raises:
        BadGraph: if a part is missing between others.
    """
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if PART.fullmatch(path.name))
    present = {numbers_of(path) for path in paths}
    for path in paths:
        repair(path)
        shard, number = numbers_of(path)
        if number and (shard, number - 1) not in present:
            raise BadGraph(
                f"{folder} lacks part {number - 1} of shard {shard}, of which there are "
                "later ones: remove the folder and write the store again"
            )
    return paths


def numbers_of(path: Path) -> tuple[int, int]:
    """Returns the shard and the number of a part."""
    shard, _, number = path.name.partition("-")
    return int(shard), int(number)


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
