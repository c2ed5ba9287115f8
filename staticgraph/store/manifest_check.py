"""Whether a store's manifest says everything that opening the store needs.

A manifest may be damaged or edited by hand and still be JSON of the right format and version. What
it lacks is found here, before any file is opened, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from staticgraph.errors import StoreCorrupt
from staticgraph.files.reading import NOT_THERE, missing
from staticgraph.schema import Schema

# Files that every store has, whatever its fields are.
STRUCTURE = (
    "node_offsets",
    "edge_offsets",
    "edge_src",
    "edge_dst",
    "row_ptr",
    "transpose",
    "edge_origin",
)
KINDS = ("column", "split", "offsets", "origins", "checks")


def check_manifest(manifest: Mapping[str, Any], path: Path) -> None:
    """Refuses a manifest that lacks a key, a file of the schema, or the numbers of a file.

    Raises:
        StoreCorrupt: it does; the message names what is missing.
    """
    try:
        if not isinstance(manifest["name"], str):
            raise TypeError(f"the name is {manifest['name']!r}")
        schema = Schema.from_dict(manifest["schema"])
        files = dict(manifest["files"])
        for name, file in files.items():
            for key in ("bytes", "crc32"):
                if not isinstance(file[key], int):
                    raise TypeError(f"{key} of {name!r} is {file[key]!r}")
            kind, dot, _ = name.partition(".")
            if kind not in (KINDS if dot else STRUCTURE):
                raise TypeError(f"a file {name!r}, which no store has")
        wanted = [*STRUCTURE, *(f"column.{field.name}" for field in schema)]
        wanted += [f"offsets.{axis.name}" for axis in schema.axes]
        absent = [name for name in wanted if name not in files]
        if absent:
            raise KeyError(", ".join(absent))
    except NOT_THERE as failure:
        raise StoreCorrupt(
            f"{path} is no complete manifest: {missing(failure)}; build the store again"
        ) from failure
