"""A store as a folder: one ``.npy`` file an array, and a manifest that says what belongs to it.

The manifest carries the format's version and, for every file, its length and CRC-32, so that a
folder that was cut short or changed is refused by name instead of training on other data. A store
is written beside its place and moved there whole: a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from staticgraph.documents import NOT_THERE
from staticgraph.errors import StoreCorrupt
from staticgraph.schema import Schema
from staticgraph.store.manifest_check import check_manifest

if TYPE_CHECKING:
    from staticgraph.store import GraphStore

FORMAT = "staticgraph.store"
VERSION = 1
MANIFEST = "manifest.json"
# Up to here a load reads every byte once to check it: cheap beside building a model.
VERIFY_BYTES = 256 * 2**20


def save(store: GraphStore, folder: str | Path) -> None:
    """Writes ``folder``, replacing a store that stands there.

    Raises:
        FileExistsError: the folder exists and is not a store.
    """
    target = Path(folder)
    if target.exists() and not (target / MANIFEST).exists():
        raise FileExistsError(f"{target} exists and is not a store; choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        files = {}
        for name, array in store.arrays().items():
            path = scratch / _file(name)
            np.save(path, array, allow_pickle=False)
            files[name] = {"bytes": path.stat().st_size, "crc32": _crc32(path)}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "name": store.name,
            "graphs": len(store),
            "histogram": store.histogram.digest,
            "schema": store.schema.to_dict(),
            "files": files,
        }
        (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1))
        scratch.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        os.replace(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def load(folder: str | Path, *, verify: bool | None = None) -> GraphStore:
    """Opens a folder that :func:`save` wrote; columns are memory-mapped, read-only.

    Args:
        folder: the folder.
        verify: compare every file's checksum; None does so for stores up to 256 MiB.

    Raises:
        FileNotFoundError: there is no store.
        StoreCorrupt: another format or version, a missing or shortened file, a wrong checksum.
    """
    from staticgraph.store import GraphStore

    root = Path(folder)
    manifest = _manifest(root)
    files: dict[str, dict[str, int]] = manifest["files"]
    if verify is None:
        verify = sum(file["bytes"] for file in files.values()) <= VERIFY_BYTES
    arrays: dict[str, np.ndarray] = {}
    for name, file in files.items():
        path = root / _file(name)
        found = path.stat().st_size if path.exists() else None
        if found != file["bytes"]:
            raise StoreCorrupt(
                f"{path} has {'no' if found is None else found} bytes, the manifest says "
                f"{file['bytes']}: the store is incomplete; build it again"
            )
        if verify and _crc32(path) != file["crc32"]:
            raise StoreCorrupt(f"{path} is not what was written (checksum differs); build it again")
        arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
    picked: dict[str, dict[str, Any]] = {"column": {}, "split": {}, "offsets": {}, "origins": {}}
    structure: dict[str, Any] = {}
    for name, array in arrays.items():
        kind, _, key = name.partition(".")
        if key:
            picked[kind][key] = array
        else:
            structure[name] = array
    schema = Schema.from_dict(manifest["schema"])
    return GraphStore(
        schema=schema,
        columns=picked["column"],
        splits=picked["split"],
        offsets={axis.name: picked["offsets"][axis.name] for axis in schema.axes},
        origins=picked["origins"],
        name=manifest["name"],
        **structure,
    )


def _file(name: str) -> str:
    """The file of an array; types of nodes and edges may be called anything."""
    return f"{quote(name, safe=' ')}.npy"


def _manifest(root: Path) -> dict[str, Any]:
    path = root / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{root} is not a store: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_text())
    except NOT_THERE as error:
        raise StoreCorrupt(f"{path} is not readable ({error}); build the store again") from None
    if not isinstance(manifest, dict):
        raise StoreCorrupt(f"{path} is not a manifest; build the store again")
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise StoreCorrupt(
            f"{path} says {manifest.get('format')} version {manifest.get('version')}; this "
            f"library reads {FORMAT} version {VERSION}: build the store again"
        )
    check_manifest(manifest, path)
    return manifest


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum
