"""Which folders one store stands in, in which order.

Said by a list of folders; by the parts of a writer that has not finished; or by a folder with a
list of its own (``manifest.json`` of the format :data:`FORMAT`), which has the sizes of all graphs,
too, so that it opens at once, and shards that are not on this machine are planned with. The
invariant: a list is what was written, with every shard's digest in it, or it is refused by name.
Who opens the folders: :mod:`staticgraph.store.shards`.
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


class Shard(NamedTuple):
    """One folder.

    Attributes:
        folder: where it is, or would be.
        graphs: in it.
        nbytes: of all of its files but the manifest.
        digest: of its manifest.
    """

    folder: Path
    graphs: int
    nbytes: int
    digest: str


@dataclass(frozen=True, eq=False)
class ShardList:
    """What is known of all shards without opening any.

    Attributes:
        shards: in their order.
        schema: of all graphs.
        name: what messages call the store.
        sizes: ``[n, C]`` in a narrow dtype, nodes, edges and the rows of each axis.
        dtypes: of each array, one that holds every shard's.
        objects: names of what stays on the host.
        splits: named lists of graph numbers, counted over all shards.
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
        """Bytes of all shards on disk."""
        return sum(shard.nbytes for shard in self.shards)


def listed(folder: Path | Sequence[Path]) -> ShardList | None:
    """The shards at a place; None where one store stands there, or nothing.

    Args:
        folder: of a list, of a writer's parts, or folders of stores in their order.

    Raises:
        StoreCorrupt: the list is not what was written.
        BadGraph: shards have other fields than the first, or there is none.
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
        return _surveyed(paths, folder.stem)
    return None


def _surveyed(folders: list[Path], name: str) -> ShardList:
    """The list of folders that stand for themselves: each is opened once."""
    if not folders:
        raise BadGraph("no shard was given; a store needs at least one")
    for folder in folders:
        repair(folder)
    sizes: dict[Path, Array] = {}
    objects: set[str] = set()

    def looked_at(folder: Path) -> GraphColumns:
        """The store in a folder, unverified; its sizes and object names are kept."""
        store = files.load(GraphColumns, folder, verify=False)
        sizes[folder] = store.narrow_sizes
        objects.update(store.objects)
        return store

    survey = Survey([partial(looked_at, folder) for folder in folders], verify=False)
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
        splits={},
    )


def write_list(folder: Path, name: str, splits: Mapping[str, Array]) -> None:
    """Makes a folder of parts one with a list: adds sizes, splits and, last, the manifest.

    Raises:
        BadGraph: there is no part, or parts have other fields than the first.
        StoreCorrupt: a part is damaged.
    """
    paths = parts_in(folder)
    found = _surveyed(paths, name)
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
    """Makes a folder with a list one of parts again, to which more may be added."""
    if (folder / files.MANIFEST).exists():
        (folder / files.MANIFEST).unlink()
        for array in folder.glob("*.npy"):
            array.unlink()


def _read(root: Path) -> ShardList:
    path = root / files.MANIFEST

    def build(values: dict[str, Any]) -> ShardList:
        """The list that the values of a manifest say."""
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
    """A folder of the list, which stands beside it."""
    if not PART.fullmatch(name):
        raise StoreCorrupt(f"{root / files.MANIFEST} lists {name!r}, which is not a shard's name")
    return root / name


def _array(root: Path, name: str, told: Mapping[str, Any]) -> Array:
    path = root / files.file_of(name)
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy raises whatever a header happens to lead to
        raise StoreCorrupt(f"{path} is not an array ({error}); {REMEDY}") from None
    same = array.dtype.str == told["dtype"] and list(array.shape) == told["shape"]
    if not same or crc32_of_array(array) != told["crc32"]:
        raise StoreCorrupt(f"{path} is not what was written (checksum differs); {REMEDY}")
    return array


def parts_in(folder: Path) -> list[Path]:
    """The parts that a writer committed, by shard and number.

    Raises:
        BadGraph: one is missing between others.
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


def numbers_of(path: Path) -> tuple[int, int]:
    """The shard and the number of a part."""
    match = PART.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])
