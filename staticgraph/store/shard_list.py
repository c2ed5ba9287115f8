"""The ordered list of the folders (shards) that make up one store.

The list comes from a sequence of folders, from the parts of an unfinished writer, or from a folder
with a list of its own (``manifest.json`` with format :data:`FORMAT`). The last also holds the sizes
of all graphs, so that it opens at once and plans can include shards that are not on this machine.
Invariant: a list is what was written, including every shard's digest, or it is rejected with an
error that names it. The folders are opened by :mod:`staticgraph.store.shards`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.files import document
from staticgraph.files.atomic import sync_file
from staticgraph.files.checksum import crc32_of_array
from staticgraph.files.document import NOT_THERE
from staticgraph.files.folder import repair
from staticgraph.schema import Schema
from staticgraph.store import files
from staticgraph.store.columns import Array, checked_splits
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.merge import Survey
from staticgraph.text.how_many import how_many

FORMAT = "staticgraph.shards"
VERSION = 1
SIZES = "sizes"
REMEDY = "copy it again from where it is whole, or write it again"
PART = re.compile(r"(\d{5})-(\d{7})")
# A file of this name beside the parts says that the writer of a shard has not ended.
UNFINISHED = ".unfinished"


class Shard(NamedTuple):
    """One shard: a folder with a store.

    Attributes:
        folder: its path; the folder may be missing on this machine.
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
    splits: Mapping[str, NDArray[np.int64]]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards on disk, without their manifests."""
        return sum(shard.nbytes for shard in self.shards)


def listed(folder: Path | Sequence[Path]) -> ShardList | None:
    """Returns the shards at a path; None if it holds a single store, or nothing.

    Args:
        folder: a folder with a list, a writer's ``.parts`` folder, or a sequence of store folders.

    Raises:
        StoreCorrupt: if the list is not what was written.
        BadGraph: if a shard's fields differ from those of the first, or the sequence is empty.
    """
    if not isinstance(folder, Path):
        return _surveyed(list(folder), "shards")
    if (folder / files.MANIFEST).is_file():
        try:
            told = document.read(folder / files.MANIFEST)
        except NOT_THERE:
            return None
        ours = isinstance(told, dict) and told.get("format") == FORMAT
        return _read(folder) if ours else None
    if folder.suffix == ".parts" and (paths := parts_in(folder)):
        check_shards(folder, paths)
        return _surveyed(paths, folder.stem)
    return None


def _surveyed(folders: list[Path], name: str) -> ShardList:
    """Builds the list from folders alone, opening each of them."""
    if not folders:
        raise BadGraph("no shard was given; a store needs at least one")
    for folder in folders:
        repair(folder)
    sizes: dict[Path, Array] = {}
    splits: dict[Path, Mapping[str, Array]] = {}
    objects: set[str] = set()

    def looked_at(folder: Path) -> GraphColumns:
        """Opens the store in a folder, unverified, and records its sizes, splits and object
        names."""
        store = files.load(GraphColumns, folder, verify=False)
        sizes[folder] = store.narrow_sizes
        splits[folder] = store.splits
        objects.update(store.objects)
        return store

    survey = Survey([partial(looked_at, folder) for folder in folders])
    shards = []
    for folder in folders:
        manifest = files.read_manifest(folder)
        nbytes = sum(file["bytes"] for file in manifest["files"].values())
        shards.append(Shard(folder, len(sizes[folder]), nbytes, document.digest(manifest)))
    return ShardList(
        shards=tuple(shards),
        schema=survey.schema,
        name=name,
        sizes=np.concatenate([sizes[folder] for folder in folders]),
        dtypes={array: survey.widest(array) for array in survey.names},
        objects=tuple(sorted(objects)),
        splits=_joined_splits(
            [splits[folder] for folder in folders], [shard.graphs for shard in shards]
        ),
    )


def _joined_splits(
    splits: Sequence[Mapping[str, Array]], graphs: Sequence[int]
) -> dict[str, NDArray[np.int64]]:
    """Returns the splits that every store has, as positions in the stores put one after the other.

    Args:
        splits: the splits of each store.
        graphs: the number of graphs of each store.
    """
    firsts = np.cumsum([0, *graphs[:-1]])
    return {
        name: np.concatenate(
            [
                np.asarray(own[name], np.int64) + first
                for own, first in zip(splits, firsts, strict=True)
            ]
        )
        for name in splits[0]
        if all(name in own for own in splits)
    }


def write_list(folder: Path, name: str, splits: Mapping[str, Array]) -> None:
    """Adds a list to a folder of parts: sizes, splits and, last, the manifest.

    Raises:
        BadGraph: if there is no part, or a part's fields differ from those of the first.
        StoreCorrupt: if a part is damaged.
    """
    found = _surveyed(parts_in(folder), name)
    arrays: dict[str, Array] = {SIZES: found.sizes}
    for key, split in checked_splits(splits, len(found.sizes), name).items():
        arrays[f"split.{key}"] = split
    described = {}
    for key, array in arrays.items():
        np.save(folder / files.file_of(key), array, allow_pickle=False)
        sync_file(folder / files.file_of(key))
        described[key] = {
            "crc32": crc32_of_array(array),
            "dtype": array.dtype.str,
            "shape": list(array.shape),
        }
    document.save(
        folder / files.MANIFEST,
        {
            "format": FORMAT,
            "version": VERSION,
            "name": name,
            "schema": found.schema.to_dict(),
            "dtypes": {key: dtype.str for key, dtype in found.dtypes.items()},
            "objects": list(found.objects),
            "shards": [
                {
                    "folder": shard.folder.name,
                    "graphs": shard.graphs,
                    "bytes": shard.nbytes,
                    "digest": shard.digest,
                }
                for shard in found.shards
            ],
            "files": described,
        },
    )


def remove_list(folder: Path) -> None:
    """Removes the list from a folder of parts, so that more parts can be added."""
    if (folder / files.MANIFEST).exists():
        (folder / files.MANIFEST).unlink()
        for array in folder.glob("*.npy"):
            array.unlink()


def _read(root: Path) -> ShardList:
    path = root / files.MANIFEST

    def build(values: dict[str, Any]) -> ShardList:
        """Builds the list from the values of a manifest."""
        if values["version"] != VERSION:
            raise StoreCorrupt(
                f"{path} says version {values['version']}; this library reads {FORMAT} version "
                f"{VERSION}: write the store again"
            )
        arrays = {key: _array(root, key, told) for key, told in values["files"].items()}
        shards = tuple(
            Shard(
                _inside(root, each["folder"]), int(each["graphs"]), int(each["bytes"]),
                str(each["digest"]),
            )
            for each in values["shards"]
        )  # fmt: skip
        schema, sizes = Schema.from_dict(values["schema"]), arrays.pop(SIZES)
        graphs = sum(shard.graphs for shard in shards)
        if sizes.shape != (graphs, len(schema.components)) or sizes.dtype.kind != "i":
            raise StoreCorrupt(
                f"{path}: {SIZES} has shape {sizes.shape} and dtype {sizes.dtype} for "
                f"{how_many(graphs, 'graph')} of {how_many(len(shards), 'shard')}; write the store "
                "again"
            )
        return ShardList(
            shards=shards,
            schema=schema,
            name=str(values["name"]),
            sizes=sizes,
            dtypes={key: np.dtype(kind) for key, kind in values["dtypes"].items()},
            objects=tuple(map(str, values["objects"])),
            splits=checked_splits(
                {key.partition(".")[2]: array for key, array in arrays.items()}, graphs, str(root)
            ),
        )

    return document.read_document(path, "a list of shards", build, StoreCorrupt)


def _inside(root: Path, name: str) -> Path:
    """Returns the path of a listed shard, which is next to the list."""
    if not PART.fullmatch(name):
        raise StoreCorrupt(f"{root / files.MANIFEST} lists {name!r}, which is not a shard's name")
    return root / name


def _array(root: Path, name: str, told: Mapping[str, Any]) -> Array:
    path = root / files.file_of(name)
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # the exception depends on the bytes
        raise StoreCorrupt(f"{path} is not an array ({error}); {REMEDY}") from None
    same = array.dtype.str == told["dtype"] and list(array.shape) == told["shape"]
    if not same or crc32_of_array(array) != told["crc32"]:
        raise StoreCorrupt(f"{path} is not what was written (checksum differs); {REMEDY}")
    return array


def parts_in(folder: Path) -> list[Path]:
    """Returns the parts that a writer committed, ordered by shard and number.

    Raises:
        BadGraph: if a part is missing between others.
    """
    if not folder.is_dir():
        return []
    found = sorted(path for path in folder.iterdir() if PART.fullmatch(path.name))
    for path in found:
        repair(path)
    numbers = np.array([numbers_of(path) for path in found], dtype=np.int64).reshape(-1, 2)
    for shard in np.unique(numbers[:, 0]):
        own = numbers[numbers[:, 0] == shard, 1]
        gaps = np.flatnonzero(own != np.arange(len(own)))
        if len(gaps):
            raise BadGraph(
                f"{folder} lacks part {int(gaps[0])} of shard {int(shard)}, of which there are "
                "later ones: remove the folder and write the store again"
            )
    return found


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


def check_ended(folder: Path) -> None:
    """Checks that no shard's writer ended in the middle.

    Raises:
        BadGraph: one did; the message names the shard.
    """
    for path in sorted(folder.glob(f"*{UNFINISHED}")):
        number = int(path.stem)
        raise BadGraph(
            f"the writer of shard {number} did not reach its end, and {folder} has what it "
            f"committed: go on from there with StoreWriter(..., shard={number}), or call its "
            "commit() if that is all"
        )


def numbers_of(path: Path) -> tuple[int, int]:
    """Returns the shard and the number of a part."""
    match = PART.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])
