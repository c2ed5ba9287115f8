"""A store as a folder: one ``.npy`` file per array, and a manifest that lists them.

The manifest holds the format version, the schema, the dtype, shape, length and CRC-32 of every
array, and a digest of all of that, so that a truncated or changed folder is rejected with an error
that names the file instead of being trained on. Small stores are checked when they are opened,
larger ones block by block when a block is first read (:mod:`staticgraph.store.block_checks`); both
are memory-mapped. A store is written next to its final path and moved there whole: a reader never
sees half of one, and after a kill the previous store is still there
(:mod:`staticgraph.files.folder`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from staticgraph.errors import StoreCorrupt
from staticgraph.files import document
from staticgraph.files.checksum import (
    crc32_of_file,
    read_array,
    require_length,
    require_written,
)
from staticgraph.files.folder import Kind, replacing
from staticgraph.schema import Schema
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.store import MANIFEST as MANIFEST
from staticgraph.store.block_checks import Checks, blocks_of, sums_of
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns, Kept, assembled
from staticgraph.store.joined_parts import Survey
from staticgraph.store.structure import Damage, by_block, check_forms, checked_manifest
from staticgraph.text.how_many import how_many

FORMAT = "staticgraph.store"
# 2: dtype and shape of each array, checksums by block, digest of the manifest. Version 1 is still
# read, and checked whole.
VERSION = 2
# Up to this size a load checks every byte: cheap compared with building a model.
WHOLE_BYTES = 64 * 2**20
REMEDY = "build the store again"
BLOCKS, SUMS = "checks.blocks", "checks.crc32"


def parts_folder(folder: Path) -> Path:
    """Returns the folder of an unfinished store's parts, which is next to the store's."""
    place = Path(os.path.abspath(folder))
    return place.with_name(f"{place.name}.parts")


def file_of(name: str) -> str:
    """Returns the file name of an array, quoted because node and edge types may have any name."""
    return f"{quote(name, safe=' ')}.npy"


KIND = Kind("store", FORMAT, MANIFEST, lambda manifest: map(file_of, manifest["files"]))


def save(store: GraphColumns, folder: str | Path, *, overwrite: bool = False) -> None:
    """Writes a store that was checked against its checksums, each array from front to back.

    Its arguments, and what it raises, are those of :meth:`staticgraph.GraphStore.save`.
    """
    survey = Survey(store._parts())
    with replacing(folder, KIND, overwrite) as scratch:

        def written(key: str, dtype: np.dtype, shape: Any, pieces: Iterable[Array]) -> Array:
            """Writes one array as a file, records it, and returns it, mapped."""
            path = scratch / file_of(key)
            with path.open("wb") as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for piece in pieces:
                    file.write(np.ascontiguousarray(piece, dtype).data)
            files[key] = {
                "bytes": path.stat().st_size,
                "crc32": crc32_of_file(path),
                "dtype": dtype.str,
                "shape": list(shape),
            }
            return np.load(path, mmap_mode="r")

        files: dict[str, dict[str, Any]] = {}
        arrays = {
            key: written(key, survey.dtype(key), shape, survey.pieces(key))
            for key, shape in survey.shapes.items()
        }
        blocks = blocks_of(survey.schema, arrays)
        more = {f"split.{key}": split for key, split in store.splits.items()}
        more |= {BLOCKS: blocks, SUMS: sums_of(survey.schema, arrays, blocks)}
        for key, array in more.items():
            written(key, array.dtype, array.shape, [array])
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "name": store.name,
            "graphs": len(store),
            "histogram": SizeHistogram.from_sizes(survey.sizes, survey.schema.components).digest,
            "schema": survey.schema.to_dict(),
            "files": files,
        }
        document.save(scratch / MANIFEST, manifest)


def load(
    kind: type[Kept], root: Path, manifest: Mapping[str, Any], *, verify: bool | None = None
) -> Kept:
    """Opens a folder that :func:`save` wrote as a class of store, given its manifest; columns are
    memory-mapped, read-only.

    Raises:
        StoreCorrupt: for a missing or truncated file, a wrong checksum, or arrays that do not fit
            together; the message names the file, array and graph.
    """
    try:
        return _load(kind, root, manifest, verify)
    except Damage as error:
        raise StoreCorrupt(f"{root}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, StoreCorrupt):
            raise
        raise StoreCorrupt(
            f"{root / MANIFEST} has missing or unknown entries ({type(error).__name__}: {error}); "
            f"{REMEDY}"
        ) from error


def _load(kind: type[Kept], root: Path, manifest: Mapping[str, Any], verify: bool | None) -> Kept:
    files: dict[str, dict[str, Any]] = manifest["files"]
    if verify is None:
        verify = sum(file["bytes"] for file in files.values()) <= WHOLE_BYTES
    verified = verify or manifest["version"] == 1
    arrays = {name: _array(root, name, file, verified) for name, file in files.items()}
    blocks, sums = arrays.pop(BLOCKS, None), arrays.pop(SUMS, None)
    schema = Schema.from_dict(manifest["schema"])
    graphs = manifest["graphs"]
    check_forms(schema, arrays, graphs)
    if blocks is None or sums is None:
        blocks, sums = blocks_of(schema, arrays), None
    elif (
        blocks.ndim != 1
        or blocks.dtype != np.int64
        or sums.shape != (len(blocks) - 1, sum(map(by_block, arrays)))
        or (blocks[0], blocks[-1]) != (0, graphs)
        or (np.diff(blocks) <= 0).any()
    ):
        raise Damage(f"{BLOCKS} and {SUMS} do not fit the arrays; {REMEDY}")
    checks = Checks(str(root), schema, arrays, blocks, None if verified else sums)
    if verified:
        checks.touch()
    unchecked = None if checks.complete else checks
    return assembled(kind, schema, arrays, name=str(manifest["name"]), checks=unchecked)


def _array(root: Path, name: str, file: Mapping[str, Any], verified: bool) -> Array:
    """Maps one array; if ``verified``, or not checked by block, its bytes are checked now."""
    path = root / file_of(name)
    length = int(file["bytes"])
    require_length(path, length, REMEDY)
    if verified or not by_block(name):
        require_written(crc32_of_file(path), file["crc32"], f"{path}", REMEDY)
    if "dtype" not in file:  # version 1
        return read_array(path, REMEDY, "r")
    # From the manifest, whose digest was checked, not from the file's own header.
    dtype, shape = np.dtype(file["dtype"]), tuple(map(int, file["shape"]))
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if (
        dtype.kind not in "biuf"
        or not dtype.isnative
        or min(shape, default=0) < 0
        or size >= length
    ):
        raise Damage(
            f"{path.name} cannot hold {dtype} of shape {shape} in {how_many(length, 'byte')}"
        )
    return np.memmap(path, dtype, "r", offset=length - size, shape=shape)


def read_manifest(root: Path) -> dict[str, Any]:
    """Reads and checks the manifest of a store; the result lacks the digest.

    Raises:
        FileNotFoundError: if there is no manifest.
        StoreCorrupt: if it is not what was written, or has another format or version.
    """
    path = root / MANIFEST
    if not path.exists():
        parts = parts_folder(root)
        raise FileNotFoundError(
            f"{root} is not a store: it has no {MANIFEST}"
            + (
                f"; {parts} has what was committed of one: load that, or finish it with "
                f"StoreWriter({str(root)!r}).finish()"
                if parts.is_dir()
                else ""
            )
        )
    try:
        return document.read_document(
            path, "a complete manifest", checked_manifest, StoreCorrupt, form=(FORMAT, (1, VERSION))
        )
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{error}; {REMEDY}") from None
